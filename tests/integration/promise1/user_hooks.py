"""A user's own saved-tensor hooks, nested, which print what they see."""

import torch
from _show import show, small
from torch.autograd.graph import saved_tensors_hooks

x, w = small(3, 3).requires_grad_(), torch.nn.Parameter(small(3, 3, seed=1))


def pack(name):
    def hook(t):
        print(
            "pack",
            name,
            type(t).__name__,
            tuple(t.shape),
            t.is_leaf,
            t.requires_grad,
            t is x,
            t is w,
            t._version,
        )
        return name, t.detach().clone()

    return hook


def unpack(packed):
    print("unpack", packed[0], tuple(packed[1].shape))
    return packed[1]


with saved_tensors_hooks(pack("outer"), unpack):
    h = (x @ w).exp()
    with saved_tensors_hooks(pack("inner"), unpack):
        h = h.sigmoid() * x
    h = h.pow(2)
outside = h.sin()
outside.sum().backward()
show("grad", x.grad, w.grad)
with saved_tensors_hooks(lambda t: 2 * t.detach(), lambda t: t):
    wrong = x * x
wrong.sum().backward()
show("changed by the hooks", x.grad)
with saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), torch.from_numpy):
    x.exp().sum().backward()
show("numpy", x.grad)
with saved_tensors_hooks(pack("failing"), lambda packed: 1 / 0):
    y = x.exp()
try:
    y.sum().backward()
except ZeroDivisionError as error:
    print(repr(error))
try:
    with saved_tensors_hooks(lambda t: 1 / 0, unpack):
        x.exp()
except ZeroDivisionError as error:
    print(repr(error))
with saved_tensors_hooks(pack("first"), unpack):
    y = x.exp()
node = y.grad_fn
print(type(node._raw_saved_result).__name__)
show("read", node._saved_result)
y.sum().backward()
