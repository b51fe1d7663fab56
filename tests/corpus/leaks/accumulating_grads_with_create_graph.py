"""Accumulating grads with create graph."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
for step in range(10):
    loss = net(torch.randn(8, 3)).pow(2).mean()
    loss.backward(create_graph=True)  # warning: GS304 [other]; held_by: GS304
