"""In place where nothing saved it."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
for _ in range(3):
    x = torch.randn(2, 4)
    h = net[0](x)
    h += 1
    h.mul_(2)
    out = net[2](torch.relu_(h))
    out.add_(1)
    out.sum().backward()
