"""Refreshed every other step."""

import torch
from torch import nn
torch.manual_seed(0)

enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
x = torch.randn(8, 4)
for i in range(8):
    if i % 2 == 0:
        z, total = enc(x), 0.0
    total = total + head(z).pow(2).mean()
    if i % 2 == 1:
        total.backward()
