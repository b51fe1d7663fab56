"""Both states of an LSTM."""

import torch
from torch import nn
torch.manual_seed(0)

lstm, head, state = nn.LSTM(3, 5), nn.Linear(5, 1), None
for step in range(3):
    out, state = lstm(torch.randn(4, 2, 3), state)  # created: GS102 GS101; held_by: GS102 GS102
    # ^ next_read: GS102
    loss = head(out).mean()
    loss.backward()  # warning: GS102 [detach] `state[0]`; error: GS101 [detach]
    # ^ failing_node: GS102; freed_by: GS102 GS101
