"""A cache that keeps graphs."""

import functools
import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
stars = torch.randn(5, 6)

@functools.lru_cache(maxsize=None)  # warning: GS302 [detach]; held_by: GS302
def code(star, version):
    return net(stars[star])

def report(version):
    return sum((code(a, version) - code(a - 1, version)).norm().item() for a in range(1, 5))

for step in range(12):
    report(step)
    opt.zero_grad()
    net(torch.randn(8, 6)).pow(2).mean().backward()
    opt.step()
