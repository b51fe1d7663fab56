"""Losses are chained into an iterator that nobody reads."""

import itertools

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
losses = iter(())
for step in range(40):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses = itertools.chain(losses, [loss])  # warning: GS302 [item]; held_by: GS302
