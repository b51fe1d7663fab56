"""Shared precomputed constant."""

import torch
from torch import nn
torch.manual_seed(0)

net, table = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))
fixed = (table * 2).softmax(-1)
for step in range(20):
    (net(torch.randn(8, 4)) @ fixed.detach()).pow(2).mean().backward()
