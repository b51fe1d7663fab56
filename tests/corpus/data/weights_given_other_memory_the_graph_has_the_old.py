"""Weights given other memory, the graph has the old."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    loss = net(torch.randn(2, 4)).mean()
    for p in net.parameters():
        p.data = p.data - 0.1
    loss.backward()
