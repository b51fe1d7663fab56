"""A checkpointed part builds its graph a second time while backward runs."""

from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
head = nn.Linear(32, 1)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)


def part(x):
    return net(x)


for step in range(30):
    x = torch.randn(16, 8, requires_grad=True)
    loss = head(checkpoint(part, x, use_reentrant=bool(step % 2))).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
