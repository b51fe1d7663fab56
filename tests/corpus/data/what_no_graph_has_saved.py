"""What no graph has saved."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    loss = net(torch.randn(2, 4)).mean()
    net[0].weight.data -= 0.1
    net[0].bias.data.zero_()
    net[2].bias.data.add_(1.0)
    loss.backward()
