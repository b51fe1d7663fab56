"""Forty micro-batches are run before the first step; their losses are kept until then."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for i in range(1, 121):
    loss = net(torch.randn(8, 4)).pow(2).mean() / 40
    loss.backward()
    losses.append(loss)
    if i % 40 == 0:
        opt.step()
        opt.zero_grad()
        print(torch.stack(losses).sum().item())
        losses = []
