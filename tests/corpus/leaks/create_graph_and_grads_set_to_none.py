"""Create graph and grads set to none."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
for step in range(12):
    loss = net(torch.randn(8, 3)).pow(2).mean()
    loss.backward(create_graph=True)
    penalty = sum(p.grad.pow(2).sum() for p in net.parameters())
    for p in net.parameters():
        p.grad = None
    penalty.backward()
    for p in net.parameters():
        p.grad = None
