"""Long unrolled recurrence once."""

import torch
from torch import nn
torch.manual_seed(0)

cell, head = nn.GRUCell(3, 8), nn.Linear(8, 1)
h, outs = torch.zeros(2, 8), []
for t in range(100):
    h = cell(torch.randn(2, 3), h)
    outs.append(head(h))
torch.stack(outs).mean().backward()
