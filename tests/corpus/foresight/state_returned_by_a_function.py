"""State returned by a function."""

import torch
from torch import nn
torch.manual_seed(0)

cell = nn.RNNCell(3, 5)
def step(x, h):
    h = cell(x, h)  # created: GS102 GS101
    h.pow(2).mean().backward()  # warning: GS102 [detach]; error: GS101 [detach]
    # ^ failing_node: GS102; freed_by: GS102 GS101
    return h
h = torch.zeros(2, 5)
for _ in range(3):
    h = step(torch.randn(2, 3), h)  # held_by: GS102; next_read: GS102
