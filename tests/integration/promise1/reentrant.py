"""Backward calls inside backward calls: from a Function, from hooks, several levels deep."""

import torch
from _show import show, small


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            out = Inner.apply(leaf, ctx.depth - 1).sin() if ctx.depth else leaf.sin()
            out.sum().backward()
        print("depth", ctx.depth)
        return grad * leaf.grad, None


x = small(3).requires_grad_()
Inner.apply(x, 3).sum().backward()
show("grad", x.grad)
other = small(3, seed=1).requires_grad_()
h = x.exp()


@torch.enable_grad()
def backward_in_hook(gradient):
    (other.sin() * gradient.detach()).sum().backward()


@torch.enable_grad()
def grad_in_hook(gradient):
    return torch.autograd.grad((other**3).sum(), other)[0] * gradient


h.register_hook(backward_in_hook)
h.register_hook(grad_in_hook)
h.sum().backward()
show("grads", x.grad, other.grad)
y = other.exp()
y.sum().backward()


@torch.enable_grad()
def again(gradient):
    try:
        y.sum().backward()
    except RuntimeError as error:
        print(str(error)[:50])


z = x.cos()
z.register_hook(again)
z.sum().backward()
z = x.tan()
z.register_hook(torch.enable_grad()(lambda g: y.sum().backward()))
try:
    z.sum().backward()
except RuntimeError as error:
    print(str(error)[:50])
show("grads", x.grad, other.grad)
