"""Two backward calls on one line, after a loop that adds the losses up."""

import torch
from torch import nn
torch.manual_seed(0)

layer = nn.Linear(3, 1)
for epoch in range(3):
    loss = 0
    for part in range(4):
        loss += layer(torch.randn(2, 3)).pow(2).mean()  # created: GS102 GS102 GS101; held_by: GS102
    loss.backward(); loss.backward()  # warning: GS102 [recompute]; error: GS101 [recompute]
    # ^ freed_by: GS102 GS101; next_read: GS102; failing_node: GS102
