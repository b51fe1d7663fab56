"""Repackaged by a function."""

import torch
from torch import nn
torch.manual_seed(0)

def repackage(state):
    if isinstance(state, torch.Tensor):
        return state.detach()
    return tuple(repackage(s) for s in state)
lstm, state = nn.LSTM(3, 5), (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
for step in range(5):
    state = repackage(state)
    out, state = lstm(torch.randn(4, 2, 3), state)
    out.mean().backward()
