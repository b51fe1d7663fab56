"""State carried by a loop."""

import torch
from torch import nn
torch.manual_seed(0)

cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(3):
    h = cell(torch.randn(2, 3), h)  # created: GS102 GS101; held_by: GS102; next_read: GS102
    h.pow(2).mean().backward()  # warning: GS102 [detach] `h`; error: GS101 [detach]
    # ^ failing_node: GS102; freed_by: GS102 GS101
