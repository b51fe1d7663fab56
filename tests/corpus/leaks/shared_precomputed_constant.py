"""Shared precomputed constant."""

import copy, gc
from collections import deque
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

net, table = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))
fixed = (table * 2).softmax(-1)
for step in range(20):
    (net(torch.randn(8, 4)) @ fixed.detach()).pow(2).mean().backward()
