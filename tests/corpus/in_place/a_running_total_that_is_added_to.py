"""A running total that is added to."""

import torch
from torch import nn
torch.manual_seed(0)

net, total, losses = nn.Linear(4, 1), torch.zeros(()), []
for _ in range(4):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    total += loss.detach()
    losses.append(loss)
print(total.item())
