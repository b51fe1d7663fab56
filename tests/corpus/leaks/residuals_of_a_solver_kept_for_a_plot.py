"""The residual of each step of a solver is kept for a plot, for all steps of training."""

import torch
from torch import nn

torch.manual_seed(0)

cell, read = nn.Linear(8, 8), nn.Linear(8, 1)
opt = torch.optim.Adam([*cell.parameters(), *read.parameters()])


class Solver:
    def __init__(self):
        self.residuals = []

    def __call__(self, x):
        z = torch.zeros_like(x)
        for _ in range(10):
            f = torch.tanh(cell(z) + x)
            r = (f - z).pow(2).sum()
            (direction,) = torch.autograd.grad(r, f, retain_graph=True)
            z = (z + 0.25 * direction).detach()
            self.residuals.append(r)  # warning: GS302 [item]; held_by: GS302
        return torch.tanh(cell(z) + x)


solver = Solver()
for step in range(12):
    loss = read(solver(torch.randn(4, 8))).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
