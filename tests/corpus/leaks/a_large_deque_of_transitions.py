"""A deque with room for more than will ever come keeps the graph of each value."""

from collections import deque

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
replay = deque(maxlen=10_000)
for step in range(40):
    value = net(torch.randn(8, 4))
    opt.zero_grad()
    value.pow(2).mean().backward()
    opt.step()
    replay.append((step, value))  # warning: GS302 [detach]; held_by: GS302
