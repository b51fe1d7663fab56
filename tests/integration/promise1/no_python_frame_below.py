"""Tensors are saved where no Python frame lies below: in torch.jit.fork, and in the engine's pool."""

import torch
from _show import show
from torch.autograd import Function


@torch.jit.script
def work(x):
    return (x * x).exp()


@torch.jit.script
def forked(x):
    future = torch.jit.fork(work, x)
    return torch.jit.wait(future).sum()


x = torch.ones(3, requires_grad=True)
forked(x).backward()
show("forked", x.grad)


class Deep(Function):
    """Its backward runs another forward and backward, more than 60 deep: the engine changes threads."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if not ctx.depth:
            return 2 * grad * x, None
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            inner = Deep.apply(y, ctx.depth - 1).sum()
            (found,) = torch.autograd.grad(inner, y, create_graph=True)
        return grad * found.detach(), None


x = torch.ones(2, requires_grad=True)
Deep.apply(x, 80).sum().backward()
show("deep", x.grad)
