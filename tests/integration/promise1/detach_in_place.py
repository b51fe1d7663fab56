"""detach_() on a tensor that a node saved: torch has an error of its own for it."""

import torch
import torch.utils.checkpoint
from _show import show, small

x = small(4).requires_grad_()
h = x * 2
y = h * h
h.detach_()
try:
    y.sum().backward()
except RuntimeError as error:
    print(error)
h = x.exp()
y = h.sin()
h.detach_()
try:
    y.sum().backward()
except RuntimeError as error:
    print(error)
show("grad", *([x.grad] if x.grad is not None else []))
state = torch.zeros(4)
for _ in range(3):
    state = (state + x).tanh()
    state.sum().backward()
    state.detach_()
show("state", state, x.grad)

h = (x * 2).add_(1)
out = torch.utils.checkpoint.checkpoint(lambda t: t * t.exp(), h, use_reentrant=False)
h.detach_()
try:
    out.sum().backward()
except RuntimeError as error:
    print(error)


class Product(torch.autograd.Function):
    """A node of Python's, in which torch is less strict."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient * b, gradient * a


h = x * 2
out = torch.utils.checkpoint.checkpoint(lambda t: Product.apply(t, t.exp()), h, use_reentrant=False)
h.detach_()
try:
    out.sum().backward()
except RuntimeError as error:
    print(error)

h = x * 2
out = Product.apply(h, x)
h.detach_()
print([type(each).__name__ for each in out.grad_fn.saved_tensors])
