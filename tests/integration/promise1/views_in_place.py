"""Views, in-place operations on views and bases, CopySlices, and version counters."""

import torch
from _show import show, small

x = small(4, 4).requires_grad_()
base = x * 1
view = base[1:3]
view.mul_(2)
base[0] = x[3] ** 2
print(base._version, view._version, base.grad_fn.name(), view.grad_fn.name(), view._base is base)
flat = base.view(-1)
flat[::2].mul_(0.5)
base.transpose(0, 1)[2].add_(1)
base.sum().backward()
show("grad", x.grad, base)
x.grad = None
y = x.clone()
y.mul_(3).clamp_(max=2)
y.diagonal().fill_(1)
(y * y).sum().backward()
show("grad", x.grad)
leaf = small(3).requires_grad_()
for change in (
    lambda: leaf.add_(1),
    lambda: leaf[0].zero_(),
    lambda: x.unbind(0)[0].requires_grad_(False),
):
    try:
        change()
    except RuntimeError as error:
        print(error)
first, second = (x * 2).unbind(0)[:2]
try:
    first.mul_(2)
except RuntimeError as error:
    print(error)
with torch.no_grad():
    leaf.add_(1)
leaf.data.mul_(2)
show("leaf", leaf)
print(leaf._version)
