"""Detached after the call."""

import torch
from torch import nn
torch.manual_seed(0)

cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(5):
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
    h = h.detach()
