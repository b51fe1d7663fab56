"""One loss in the list."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 1)
losses = [net(torch.randn(3, 4)).pow(2).mean() for _ in range(3)]
for loss in [sum(losses)]:
    loss.backward()
for loss in [l for l in losses[:0]]:
    loss.backward()
one = [net(torch.randn(3, 4)).pow(2).mean()]
for loss in one:
    loss.backward()
