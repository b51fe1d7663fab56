"""Reentrant checkpoints whose functions close over one tensor with a graph."""

import functools
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)

side, blocks = nn.Linear(3, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

def run(block, context, h):
    return torch.tanh(block(h) * context)  # next_read: GS102

context = side(torch.randn(4, 3)).sigmoid()  # created: GS102 GS102 GS101; held_by: GS102
h = torch.randn(4, 8, requires_grad=True)
for block in blocks:
    h = checkpoint(functools.partial(run, block, context), h, use_reentrant=True)
h.sum().backward()
# ^ warning: GS102 [reorder] `context`; error: GS101 [reorder]
# ^ failing_node: GS102; freed_by: GS102 GS101
