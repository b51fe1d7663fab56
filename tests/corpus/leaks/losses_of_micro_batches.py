"""Losses of micro batches."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(10):
    losses = []
    for micro in range(16):
        loss = net(torch.randn(8, 4)).pow(2).mean() / 16
        loss.backward()
        losses.append(loss)
    opt.step()
    opt.zero_grad()
