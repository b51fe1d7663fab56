"""It is not known how long the range is; each of two loops goes through all of it, and the second detaches."""

import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
cell = nn.Linear(4, 4)
h = torch.zeros(1, 4)
for step in range(4):
    h = torch.tanh(cell(h))  # created: GS102 GS102; held_by: GS102; next_read: GS102
    h.pow(2).sum().backward()  # advice: GS102 [detach]; freed_by: GS102; failing_node: GS102
    rounds = range(random.randint(1, 2))
    for _ in rounds:
        print("one")
    for _ in rounds:
        h = h.detach()
