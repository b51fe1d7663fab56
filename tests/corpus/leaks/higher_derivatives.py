"""A function's first ten derivatives, each of the one before."""

import torch

torch.manual_seed(0)
for start in range(3):
    x = torch.linspace(0, 1, 50, requires_grad=True)
    y = x.sin().exp()
    terms = []
    for order in range(10):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        terms.append(y.detach())
