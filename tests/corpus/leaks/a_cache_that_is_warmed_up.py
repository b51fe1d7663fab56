"""A cache of each batch's features is filled in the first epoch, and then only read."""

import torch
from torch import nn

torch.manual_seed(0)
net, head = nn.Linear(4, 8), nn.Linear(8, 1)
opt = torch.optim.SGD(head.parameters(), lr=0.1)
data, cache = torch.randn(12, 8, 4), {}
for epoch in range(5):
    for i, x in enumerate(data):
        if i not in cache:
            cache[i] = net(x)
        loss = head(cache[i].detach()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
