"""Validation after training."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
for step in range(6):
    net(torch.randn(8, 4)).pow(2).mean().backward()
predictions = []
for batch in range(20):
    predictions.append(net(torch.randn(8, 4)))  # warning: GS302 [detach]; held_by: GS302
