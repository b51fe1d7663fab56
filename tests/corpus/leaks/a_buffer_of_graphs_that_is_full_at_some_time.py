"""A ring of losses that overwrites its oldest entry, and a pool that fills and is drawn from."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
ring, pool = [None] * 24, []
for step in range(80):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ring[step % len(ring)] = loss
    pool.append(loss)
    if len(pool) > 32:
        pool.pop(0)
