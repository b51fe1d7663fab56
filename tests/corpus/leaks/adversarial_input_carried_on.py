"""Adversarial input carried on."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 1))
x = torch.randn(4, 5, requires_grad=True)
momentum = torch.zeros(4, 5)
scale = nn.Parameter(torch.ones(()))
for i in range(12):
    loss = net(x).mean()
    g, = torch.autograd.grad(loss, x)
    momentum = 0.9 * momentum + scale * g  # warning: GS302 [no_grad]; held_by: GS302
    x = (x + 0.1 * g).detach().requires_grad_()
