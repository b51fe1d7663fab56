"""The Hessian of each frame is kept with the graphs of all its rows; nothing is trained."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def hessian(pos):
    pos = pos.clone().requires_grad_()
    forces = -torch.autograd.grad(net(pos).sum(), pos, create_graph=True)[0]
    rows = []
    for f in forces.flatten():
        rows.append(torch.autograd.grad(f, pos, retain_graph=True, create_graph=True)[0].flatten())
    return torch.stack(rows)


results = []
for frame in range(12):
    results.append(hessian(torch.randn(2, 3)))  # warning: GS302 [detach]; held_by: GS302
