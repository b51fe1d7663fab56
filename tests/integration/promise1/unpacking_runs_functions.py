"""Unpacking a Function's saved tensors runs other Functions: in checkpoints, nested, and in hooks."""

import torch
from _show import show
from torch.autograd import Function
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


class Mul(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, None)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        x, nothing = ctx.saved_tensors
        assert nothing is None
        return 2 * Mul.apply(grad, x)


def leaves():
    return torch.tensor(2.0, requires_grad=True), torch.tensor(10.0, requires_grad=True)


def step(x, w):
    return Mul.apply(Square.apply(x + 1), w)


def nested(x, w):
    return checkpoint(step, Mul.apply(x, w), w, use_reentrant=False) * w


for forward in (step, nested):
    for reentrant in (False, True):
        if forward is nested and reentrant:
            continue
        x, w = leaves()
        checkpoint(forward, x, w, use_reentrant=reentrant).sum().backward()
        show(f"{forward.__name__} {reentrant}", x.grad)
        show("w", w.grad)

x, w = leaves()
with save_on_cpu():
    loss = checkpoint(step, x, w, use_reentrant=False) + step(x, w)
loss.backward()
show("on cpu", x.grad)
show("w", w.grad)


def unpack(kept):
    """Computes with Functions of its own, forward and backward, while another one's tensors are read."""
    with torch.enable_grad():
        a = kept.detach().requires_grad_()
        (g,) = torch.autograd.grad(Square.apply(Mul.apply(a, a.detach())), a)
    show("unpacked", g)
    return kept


x, w = leaves()
with saved_tensors_hooks(lambda t: t.detach().clone(), unpack):
    loss = step(x, w)
loss.backward()
show("hooked", x.grad)
show("w", w.grad)

x, w = leaves()
(g,) = torch.autograd.grad(checkpoint(step, x, w, use_reentrant=False), x, create_graph=True)
g.backward()
show("second", x.grad)
show("w", w.grad)
