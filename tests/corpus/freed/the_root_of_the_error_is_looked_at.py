"""The root of the error is looked at."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 1)
for _ in range(3):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    rmse = torch.sqrt(loss)
    print(rmse.item())
