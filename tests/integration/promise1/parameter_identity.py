"""A saved Parameter comes back in ctx.saved_tensors as what it was: the same object, with its attributes."""

import torch
from _show import show, small
from torch import nn


class Accumulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        print(
            type(weight).__name__,
            weight is layer.weight,
            hasattr(weight, "main_grad"),
            x is given,
            x.is_leaf,
        )
        if hasattr(weight, "main_grad"):
            weight.main_grad.add_(grad.t() @ x)
        return grad @ weight, None


torch.manual_seed(0)
layer = nn.Linear(4, 3, bias=False)
layer.weight.main_grad = torch.zeros_like(layer.weight)
layer.weight.requires_grad_()
given = small(2, 4).requires_grad_()
for _ in range(2):
    Accumulate.apply(given, layer.weight).square().sum().backward()
show("main_grad", layer.weight.main_grad, layer.weight.grad, given.grad)
