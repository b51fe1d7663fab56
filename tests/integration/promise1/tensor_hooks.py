"""Tensor hooks, retain_grad, post-accumulate hooks, Node hooks and multi-grad hooks, in order."""

import torch
from _show import show, small
from torch.autograd.graph import register_multi_grad_hook

x = small(4).requires_grad_()
h = x.sin()
y = h * x
h.retain_grad()
h.register_hook(lambda g: print("h", tuple(g.shape)))
handle = y.register_hook(lambda g: g * 3)
x.register_hook(lambda g: print("x", g.requires_grad))
x.register_post_accumulate_grad_hook(lambda p: print("accumulated", p is x, p.grad is not None))
y.grad_fn.register_prehook(lambda grads: print("prehook", len(grads)))
y.grad_fn.register_hook(lambda ins, outs: print("node hook", len(ins), len(outs)))
multi = register_multi_grad_hook([x, h], lambda grads: print("multi", len(grads)))
y.sum().backward(retain_graph=True)
show("grads", x.grad, h.grad)
handle.remove()
multi.remove()
y.sum().backward()
show("grads", x.grad, h.grad)
parameters = [small(3, seed=i).requires_grad_() for i in range(3)]
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in parameters}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in parameters:
    p.register_post_accumulate_grad_hook(step)
for _ in range(2):
    sum((p.square() * i).sum() for i, p in enumerate(parameters)).backward()
show("parameters", *parameters)
leaf = small(2).requires_grad_()
node = leaf.view_as(leaf).grad_fn.next_functions[0][0]
node.register_hook(lambda *_: print("AccumulateGrad hook"))
leaf.sum().backward()
