"""Unrolled recurrence."""

import torch
from torch import nn
torch.manual_seed(0)

cell, head = nn.GRUCell(3, 8), nn.Linear(8, 1)
for sequence in range(10):
    h, outs = torch.zeros(2, 8), []
    for t in range(12):
        h = cell(torch.randn(2, 3), h)
        outs.append(head(h))
    torch.stack(outs).mean().backward()
