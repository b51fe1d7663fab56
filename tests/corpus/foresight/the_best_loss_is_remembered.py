"""The best loss is remembered."""

import torch
from torch import nn
torch.manual_seed(0)

net, best = nn.Linear(4, 1), None
for _ in range(5):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    if best is None or loss < best:
        best = loss
print(best.item())
