"""Losses summed then one backward."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 1)
for step in range(10):
    losses, total = [], 0
    for micro in range(6):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        losses.append(loss)
        total = total + loss
    total.backward()
