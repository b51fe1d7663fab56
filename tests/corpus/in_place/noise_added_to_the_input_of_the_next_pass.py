"""Noise added to the input of the next pass."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.randn(3, 4)
for _ in range(3):
    loss = net(x).mean()
    loss.backward()
    x.add_(0.1 * torch.randn(3, 4))
