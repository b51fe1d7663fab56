"""Reset once in a while."""

import torch
from torch import nn
torch.manual_seed(0)

cell, h, at = nn.RNNCell(3, 5), torch.zeros(2, 5), 0
size = 9
for step in range(3):
    if at + 1 > size:
        h, at = torch.zeros(2, 5), 0
    at += 1
    h = cell(torch.randn(2, 3), h)  # created: GS102 GS101; held_by: GS102; next_read: GS102
    loss = h.pow(2).mean()
    loss.backward()  # warning: GS102 [detach] `h`; error: GS101 [detach]
    # ^ failing_node: GS102; freed_by: GS102 GS101
    if step % 2 == 0:
        print(f"{loss.item():.3f}")
