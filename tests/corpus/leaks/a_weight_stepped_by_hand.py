"""A weight stepped by hand: create_graph=True and no cut, so that each weight holds all before it."""

import torch

torch.manual_seed(0)
w = torch.randn(30, 30, requires_grad=True)
for i in range(40):
    loss = (torch.randn(10, 30) @ w).tanh().pow(2).mean()
    (g,) = torch.autograd.grad(loss, [w], create_graph=True)  # warning: GS301 [detach]
    w = w - 0.1 * g  # held_by: GS301
