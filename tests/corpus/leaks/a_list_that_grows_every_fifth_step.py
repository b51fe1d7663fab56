"""A log that takes the loss of every fifth step, with its graph."""

import torch
from torch import nn

torch.manual_seed(0)
net, log = nn.Linear(4, 1), []
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(60):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        log.append(loss)  # warning: GS302 [item]; held_by: GS302
