"""Read only, and copies written."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net, total = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), 0.0
for _ in range(3):
    out = net(torch.randn(2, 4))
    shown = net[2].weight.data.clone()
    shown.mul_(100)
    best = out.data.max(0)[1]
    best.add_(1)
    total += out.data.abs().sum().item()
    loss = out.pow(2).mean()
    loss.backward()
