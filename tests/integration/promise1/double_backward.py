"""Gradient penalty, Hessian-vector products, and backward(create_graph=True)."""

import torch
from _show import show, small

x, w = small(3, 4).requires_grad_(), small(4, 1, seed=1).requires_grad_()
out = torch.tanh(x @ w).exp()
(gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
penalty = (gradient.norm(dim=1) - 1).square().mean()
penalty.backward()
show("penalty", penalty, x.grad, w.grad)

vector = small(4, 1, seed=2)
for _ in range(3):
    (first,) = torch.autograd.grad((x @ w).pow(3).sum(), w, create_graph=True)
    (product,) = torch.autograd.grad(first, w, vector)
    show("hvp", product)

w.grad = None
(w.square().sum()).backward(create_graph=True)
show("second", w.grad)
w.grad.sum().backward()
show("second", w.grad)
w.grad = None
y = w.sin()
for order in range(4):
    (y,) = torch.autograd.grad(y.sum(), w, create_graph=True)
    show(f"order {order}", y)
