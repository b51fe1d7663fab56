"""A cached function."""

import torch
from torch import nn
torch.manual_seed(0)

import functools
w = nn.Parameter(torch.randn(4))
@functools.lru_cache(maxsize=None)  # held_by: GS102
def table():
    return w.exp()  # created: GS102 GS101
for _ in range(3):
    (table() * torch.randn(4)).sum().backward()
    # ^ warning: GS102 [recompute] `<lru_cache of table>`; error: GS101 [recompute]
    # ^ failing_node: GS102; freed_by: GS102 GS101; next_read: GS102
