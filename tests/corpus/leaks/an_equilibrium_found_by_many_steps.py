"""An equilibrium model: a solver of many steps, with gradients, in each forward pass."""

import torch
from torch import nn

torch.manual_seed(0)

cell, read = nn.Linear(8, 8), nn.Linear(8, 1)
opt = torch.optim.Adam([*cell.parameters(), *read.parameters()])


def equilibrium(x):
    z, residuals = torch.zeros_like(x), []
    for _ in range(40):
        f = torch.tanh(cell(z) + x)
        r = (f - z).pow(2).sum()
        (direction,) = torch.autograd.grad(r, f, retain_graph=True)
        z = z + 0.25 * direction
        residuals.append(r)
    return torch.tanh(cell(z) + x), residuals


for step in range(5):
    z, residuals = equilibrium(torch.randn(4, 8))
    loss = read(z).pow(2).mean() + 1e-3 * residuals[-1]
    opt.zero_grad()
    loss.backward()
    opt.step()
