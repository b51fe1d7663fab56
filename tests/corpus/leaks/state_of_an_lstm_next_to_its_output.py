"""State of an lstm next to its output."""

import torch
from torch import nn
torch.manual_seed(0)

lstm, head = nn.LSTM(3, 5), nn.Linear(5, 1)
state = (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
for step in range(10):
    out, state = lstm(torch.randn(4, 2, 3), state)  # held_by: GS301
    loss = head(out).pow(2).mean()
    loss.backward(retain_graph=True)  # warning: GS301 [detach]
