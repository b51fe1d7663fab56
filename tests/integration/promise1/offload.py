"""save_on_cpu, alone and around a checkpoint."""

from _show import show, small
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

x = small(4, 4).requires_grad_()
with save_on_cpu():
    y = (x @ x).softmax(0)
y.square().sum().backward()
show("grad", x.grad)
with save_on_cpu(pin_memory=False):
    y = checkpoint(lambda t: t.exp().sin(), x, use_reentrant=False)
y.sum().backward()
show("grad", x.grad)
with save_on_cpu():
    h = x * 2
    y = h * h
h.add_(1)
y.sum().backward()
show("changed", x.grad)
