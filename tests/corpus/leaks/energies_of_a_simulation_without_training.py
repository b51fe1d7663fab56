"""A simulation by forces: it keeps the energy of each step, and nothing is ever trained."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
pos, energies = torch.randn(4, 3), []
for step in range(40):
    pos = pos.detach().requires_grad_()
    energy = net(pos).sum()
    (force,) = torch.autograd.grad(energy, pos)
    energies.append(energy)  # warning: GS302 [item]; held_by: GS302
    pos = pos - 0.01 * force
