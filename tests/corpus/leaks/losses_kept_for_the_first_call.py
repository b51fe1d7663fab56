"""Losses of many batches that are kept, and all run by the first backward call."""

import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=4e-3)

for step in range(4):
    errors = []
    for _ in range(25):
        x = torch.rand(64, 3)
        errors.append(F.l1_loss(net(x), x[:, :1]))
    opt.zero_grad()
    torch.stack(errors).mean().backward()
    opt.step()
