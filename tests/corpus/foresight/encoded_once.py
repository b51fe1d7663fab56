"""Encoded once."""

import torch
from torch import nn
torch.manual_seed(0)

enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
z = enc(torch.randn(8, 4))  # created: GS102 GS101; held_by: GS102
for i in range(3):
    head(z).pow(2).mean().backward()  # warning: GS102 [recompute] `z`
    # ^ error: GS101 [recompute]; failing_node: GS102; freed_by: GS102 GS101; next_read: GS102
