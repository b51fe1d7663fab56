"""Grads stored by a hook with create graph."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 1)
grads = []
net.weight.register_hook(lambda g: grads.append(g))  # warning: GS302 [detach]; held_by: GS302
for step in range(10):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    g, = torch.autograd.grad(loss, net.weight, create_graph=True)
    (loss + g.pow(2).sum()).backward()
    net.zero_grad()
