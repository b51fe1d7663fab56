"""Gradients of several inputs of one graph."""

import torch
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
for _ in range(3):
    y = w.sin()
    first, = torch.autograd.grad(y.sum(), w)
    second, = torch.autograd.grad(w.cos().sum(), w)
