"""Two losses."""

import torch
from torch import nn
torch.manual_seed(0)

enc, a, b = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1), nn.Linear(4, 1)
z = enc(torch.randn(8, 4))  # created: GS102 GS101
first, second = a(z).mean(), b(z).pow(2).mean()  # held_by: GS102
first.backward()  # warning: GS102 [sum_losses] `second`; freed_by: GS102 GS101
second.backward()  # error: GS101 [sum_losses]; failing_node: GS102; next_read: GS102
