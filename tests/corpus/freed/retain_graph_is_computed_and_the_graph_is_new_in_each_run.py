"""Retain_graph is computed, and the graph is new in each run."""

import torch
from torch import nn
torch.manual_seed(0)

keep = False
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
for _ in range(4):
    z = net(torch.randn(2, 4))
    z.pow(2).mean().backward(retain_graph=keep)
