"""Retained until the last."""

import torch
from torch import nn
torch.manual_seed(0)

z = torch.tanh(nn.Linear(4, 4)(torch.randn(3, 4)))
n = 3
for i in range(n):
    z[i].pow(2).sum().backward(retain_graph=i < n - 1)
