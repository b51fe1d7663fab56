"""A global counter decides which way a function takes; the recomputation counts on."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
up, down = nn.Linear(4, 8), nn.Linear(8, 4)
calls = 0


def block(x):
    global calls
    calls += 1
    h = up(x)
    h = torch.relu(h) if calls % 2 else h * torch.sigmoid(h)  # failing_node: GS601
    return down(h)


for step in range(4):
    out = checkpoint(block, torch.randn(3, 4), use_reentrant=False)  # created: GS601
    out.sum().backward()  # error: GS601 [other]
