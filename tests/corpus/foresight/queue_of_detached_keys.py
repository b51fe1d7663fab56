"""Queue of detached keys."""

import torch
from torch import nn
torch.manual_seed(0)

import collections
enc, queue = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), collections.deque(maxlen=3)
for _ in range(5):
    q = enc(torch.randn(2, 4))
    loss = q.pow(2).mean() + sum((q * k).mean() for k in queue)
    loss.backward()
    queue.append(q.detach())
