"""An exception of the user's own that leaves a Function's backward, and notes on it."""

import torch
from _show import small


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        error = KeyError("broken")
        error.add_note("a note")
        raise error


x = small(3).requires_grad_()
try:
    Fails.apply(x).sum().backward()
except KeyError as error:
    print(repr(error), error.__notes__)
x.register_hook(lambda g: [][1])
x.exp().sum().backward()
