"""A queue of keys."""

import torch
from torch import nn
torch.manual_seed(0)

import collections
enc, queue = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), collections.deque(maxlen=3)
for _ in range(3):
    q = enc(torch.randn(2, 4))  # created: GS102 GS101; held_by: GS102
    loss = q.pow(2).mean() + sum((q * k).mean() for k in queue)  # next_read: GS102
    loss.backward()  # warning: GS102 [detach]; error: GS101 [detach]
    # ^ failing_node: GS102; freed_by: GS102 GS101
    queue.append(q)
