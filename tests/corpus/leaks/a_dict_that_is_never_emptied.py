"""A dict takes the loss of each step under a new key."""

import torch
from torch import nn

torch.manual_seed(0)
net, losses = nn.Linear(4, 1), {}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(40):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses[step] = loss  # warning: GS302 [item]; held_by: GS302
