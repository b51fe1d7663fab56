"""Detached by a setting."""

import torch
from torch import nn
torch.manual_seed(0)

cell, h, truncate = nn.RNNCell(3, 5), torch.zeros(2, 5), True
for step in range(5):
    if truncate:
        h = h.detach()
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
