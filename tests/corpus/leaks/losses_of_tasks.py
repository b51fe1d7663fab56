"""Losses of tasks. GS102 is a false alarm: each iteration has a key of its own."""

import copy, gc
from collections import deque
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

heads = nn.ModuleDict({f"t{i}": nn.Linear(4, 1) for i in range(5)})
losses = {}  # held_by: GS102
for name, head in heads.items():
    losses[name] = head(torch.randn(8, 4)).pow(2).mean()  # created: GS102 GS102
    losses[name].backward()  # warning: GS102 [recompute]; failing_node: GS102; freed_by: GS102
    # ^ next_read: GS102
