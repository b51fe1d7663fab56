"""Losses summed then one backward."""

import copy, gc
from collections import deque
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

net = nn.Linear(4, 1)
for step in range(10):
    losses, total = [], 0
    for micro in range(6):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        losses.append(loss)
        total = total + loss
    total.backward()
