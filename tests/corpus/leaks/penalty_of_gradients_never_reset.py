"""Gradients that keep their graphs are never reset, and a penalty is computed of them."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    loss = net(torch.randn(4, 4)).pow(2).mean()
    loss.backward(create_graph=True)  # warning: GS304 [other]; held_by: GS304
    penalty = sum(p.grad.pow(2).sum() for p in net.parameters())
    # ^ advice: GS305 [no_grad]; created: GS305
    optimizer.step()
