"""Consecutive outputs of a model, each in two pairs."""

import itertools
import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
stretches = [torch.randn(5, 3) for _ in range(4)]
for before, after in itertools.pairwise(map(net, stretches)):  # created: GS102 GS101
    opt.zero_grad()
    (before - after).square().mean().backward()
    # ^ warning: GS102 [detach] `after`; error: GS101 [detach]
    # ^ failing_node: GS102; freed_by: GS102 GS101; next_read: GS102
    opt.step()
