"""Computed again after the write."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    x = torch.randn(2, 4)
    loss = net(x).mean()
    for p in net.parameters():
        p.data.add_(0.01 * torch.randn_like(p))
    loss = net(x).mean()
    loss.backward()
