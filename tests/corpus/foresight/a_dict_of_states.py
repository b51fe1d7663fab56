"""A dict of states."""

import torch
from torch import nn
torch.manual_seed(0)

cell, states = nn.RNNCell(3, 5), {"a": torch.zeros(2, 5)}
for _ in range(3):
    states["a"] = cell(torch.randn(2, 3), states["a"])  # created: GS102 GS101; held_by: GS102
    # ^ next_read: GS102
    states["a"].pow(2).mean().backward()  # warning: GS102 [detach] `states['a']`
    # ^ error: GS101 [detach]; failing_node: GS102; freed_by: GS102 GS101
