"""Weights clipped after the call, and steps by hand."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    loss = critic(torch.randn(3, 4)).mean()
    critic.zero_grad()
    loss.backward()
    for p in critic.parameters():
        p.data -= 0.1 * p.grad.data
        p.data.clamp_(-0.1, 0.1)
