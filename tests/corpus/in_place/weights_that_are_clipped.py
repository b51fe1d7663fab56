"""Weights that are clipped."""

import torch
from torch import nn
torch.manual_seed(0)

critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.RMSprop(critic.parameters())
for _ in range(3):
    loss = critic(torch.randn(3, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for p in critic.parameters():
        p.data.clamp_(-0.1, 0.1)
