"""Made anew now and then."""

import torch
from torch import nn
torch.manual_seed(0)

enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
for step in range(4):
    if torch.rand(()).item() < 2 * (step % 3 != 1):
        z = enc(torch.randn(2, 4))  # created: GS103 GS102 GS101; held_by: GS102
    out = head(z)  # warning: GS103 [recompute]; next_read: GS102
    out.mean().backward()  # error: GS101 [recompute]; advice: GS102 [recompute]; freed_by: GS103 GS102 GS101
    # ^ next_read: GS103; failing_node: GS102
