"""A generator of batches."""

import torch
from torch import nn
torch.manual_seed(0)

cell = nn.RNNCell(3, 5)
def episodes(n):
    for _ in range(n):
        h = torch.zeros(2, 5)
        for _ in range(3):
            h = cell(torch.randn(2, 3), h)
        yield h
for h in episodes(4):
    h.pow(2).mean().backward()
