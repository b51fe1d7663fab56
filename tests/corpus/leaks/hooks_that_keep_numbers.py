"""Hooks that keep numbers."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
norms, acts = [], {}
net[1].register_forward_hook(lambda m, i, o: acts.__setitem__("z", o))
for step in range(12):
    out = net(torch.randn(8, 4))
    acts["z"].register_hook(lambda g: norms.append(g.norm().item()))
    out.mean().backward()
