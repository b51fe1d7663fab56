"""Hooks on parameters that a custom function and an operation have saved run in every backward call."""

import torch
from _show import show, small


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


x, w, half = small(3).requires_grad_(), small(3).requires_grad_(), small(3).half().requires_grad_()
for name, leaf in (("x", x), ("w", w), ("half", half)):
    leaf.register_hook(lambda grad, name=name: print("hook of", name))
    leaf.register_post_accumulate_grad_hook(lambda leaf, name=name: print("after", name))
for _ in range(3):
    h = Scale.apply(x, w) + Scale.apply(x, half).float() + w.sin() * w
    h.sum().backward()
    show("grad", x.grad, w.grad, half.grad)

# In a double backward they are saved again.
for body in (lambda x, w: (x * w).exp(), lambda x, w: Scale.apply(x * x, w).exp()):
    for times in (1, 2):
        gradient = body(x, w)
        for _ in range(times):
            (gradient,) = torch.autograd.grad(gradient.sum(), x, create_graph=True)
            gradient = gradient * w
        gradient.sum().backward()
        show("double", x.grad, w.grad)
        body(x, w).sum().backward()
        show("again", x.grad, w.grad)
