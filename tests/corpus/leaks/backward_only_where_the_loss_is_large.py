"""The loss is run backward only where it is large, and not at all while warming up."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
mean = 0.0
for step in range(30):
    loss = net(torch.randn(16, 8)).pow(2).mean()
    if step >= 6 and loss > mean:
        opt.zero_grad()
        loss.backward()
        opt.step()
    mean = 0.9 * mean + 0.1 * loss.item()
