"""Made anew or detached."""

import torch
from torch import nn
torch.manual_seed(0)

cell, h = nn.RNNCell(3, 5), None
for step in range(5):
    if h is None:
        h = torch.zeros(2, 5)
    else:
        h = h.detach()
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
