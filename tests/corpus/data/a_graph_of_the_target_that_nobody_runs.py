"""A graph of the target that nobody runs."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net, target = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(2))
for step in range(3):
    x = torch.randn(3, 4)
    wanted = target(x)
    for t, p in zip(target.parameters(), net.parameters()):
        t.data.copy_(0.5 * t.data + 0.5 * p.data)
    loss = (net(x) - wanted.detach()).pow(2).mean()
    loss.backward()
