"""A variable of a generator that waits keeps graphs: no exception does."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.01)


def simulated(x):
    while True:
        x = torch.tanh(net(x))  # warning: GS302 [no_grad]; held_by: GS302
        yield x.sum().item()


path = simulated(torch.randn(4))
for _ in range(20):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    next(path)
