"""A wrapper subclass whose __torch_dispatch__ prints every call that it sees, forward and backward."""

import torch
from _show import show, small
from torch.utils._pytree import tree_map_only


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return "Wrapped"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        print("dispatch", func)
        args, kwargs = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


x = Wrapped(small(3, 3)).requires_grad_()
h = (x @ x).sigmoid()
loss = (h * x).sum()
print("backward")
loss.backward()
show("grad", x.grad.inner)
del h, loss
y = x.exp()
y.sum().backward(retain_graph=True)
print("again")
y.sum().backward()
show("grad", x.grad.inner)
