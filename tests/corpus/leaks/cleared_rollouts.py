"""Cleared rollouts."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
rollout = []
for t in range(60):
    rollout.append(net(torch.randn(1, 4)).log_softmax(-1)[0, 0])
    if len(rollout) == 5:
        torch.stack(rollout).mean().backward()
        rollout.clear()
