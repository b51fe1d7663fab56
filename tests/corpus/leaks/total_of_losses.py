"""Total of losses."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
epoch_total = 0.0
for step in range(10):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    epoch_total += loss  # warning: GS302 [item]; held_by: GS302
