"""Made anew in some iterations; of the next it is known that it is none of these."""

import torch
from torch import nn
torch.manual_seed(0)

enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
for step in range(4):
    if torch.rand(()).item() < 2 and step % 3 != 1:
        z = enc(torch.randn(2, 4))  # created: GS102 GS101; held_by: GS102
    out = head(z)  # next_read: GS102
    out.mean().backward()  # warning: GS102 [recompute] `z`; error: GS101 [recompute]
    # ^ failing_node: GS102; freed_by: GS102 GS101
