"""A loss of many parts, each in a variable of its own, is run backward twice."""

import torch
from torch import nn
torch.manual_seed(0)

layer = nn.Linear(3, 1)
for epoch in range(3):
    a = layer(torch.randn(2, 3)).exp()
    b, c, d = a.sin(), a.cos(), a.exp()
    e, f, g = b.exp(), c.exp(), d.exp()
    h, i, j = e.sin(), f.sin(), g.sin()  # created: GS102
    k, l, m = h.exp(), i.exp(), j.exp()  # created: GS102
    loss = (k + l + m).sigmoid().sum()  # created: GS102 GS101; held_by: GS102
    loss.backward()  # warning: GS102 [recompute]; freed_by: GS102 GS101
    loss.backward()  # error: GS101 [recompute]; next_read: GS102; failing_node: GS102
