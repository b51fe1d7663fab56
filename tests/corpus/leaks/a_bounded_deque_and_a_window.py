"""A bounded deque, and a list that is cut to its last elements: neither grows for ever."""

from collections import deque

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
recent, window = deque(maxlen=20), []
for step in range(60):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    recent.append(loss)
    window.append(loss)
    window = window[-20:]
