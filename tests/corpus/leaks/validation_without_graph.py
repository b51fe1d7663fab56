"""Validation without graph."""

import torch
from torch import nn
torch.manual_seed(0)

net, total = nn.Linear(4, 1), 0
for epoch in range(5):
    net(torch.randn(8, 4)).pow(2).mean().backward()
    with torch.no_grad():
        for batch in range(8):
            total += net(torch.randn(8, 4)).pow(2).mean()
