"""Losses in a list."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
z = net(torch.randn(3, 4))  # created: GS102 GS101
losses = [z[i].pow(2).sum() for i in range(3)]  # held_by: GS102
for loss in losses:
    loss.backward()  # warning: GS102 [sum_losses]; error: GS101 [sum_losses]
    # ^ failing_node: GS102; freed_by: GS102 GS101; next_read: GS102
