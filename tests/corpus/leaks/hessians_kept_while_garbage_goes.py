"""The garbage of an earlier phase is collected while the Hessian of each frame is kept; nothing is trained."""

import gc

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


gc.disable()
cycle = []
for _ in range(20):
    x = torch.randn(2, 3, requires_grad=True)
    cycle += torch.autograd.grad(  # warning: GS302 [detach]; held_by: GS302
        net(x).sum(), x, create_graph=True
    )
cycle.append(cycle)
del cycle

results = []
for frame in range(12):
    results.append(hessian(torch.randn(2, 3)))  # warning: GS302 [detach]; held_by: GS302
    if frame == 8:
        gc.collect()
