"""The last of a list frees."""

import torch
from torch import nn
torch.manual_seed(0)

z = torch.tanh(nn.Linear(4, 4)(torch.randn(3, 4)))
losses = [z[i].pow(2).sum() for i in range(3)]
for i, loss in enumerate(losses):
    if i < 2:
        loss.backward(retain_graph=True)
    else:
        loss.backward()
