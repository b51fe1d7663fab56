"""Statistics are warmed up by a call of their own before the training."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def loss_of(x):
    return net(x).pow(2).mean()


for _ in range(12):
    loss_of(torch.randn(16, 8))  # advice: GS305 [no_grad]
for step in range(12):
    loss = loss_of(torch.randn(16, 8))
    opt.zero_grad()
    loss.backward()
    opt.step()
