"""An adversarial input, changed between the calls."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
delta = torch.zeros(3, 4, requires_grad=True)
x = torch.randn(3, 4)
for _ in range(4):
    loss = net(x + delta).mean()
    loss.backward()
    with torch.no_grad():
        delta.add_(0.1 * delta.grad.sign()).clamp_(-0.3, 0.3)
    delta.grad.zero_()
