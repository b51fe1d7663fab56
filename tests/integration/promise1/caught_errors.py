"""The texts of the engine's errors, caught and printed."""

import traceback

import torch
from _show import show, small

x = small(3, 3).requires_grad_()


def attempt(name, action):
    try:
        action()
    except Exception as error:
        print(name, type(error), error, error.args, error.__cause__, error.__context__)
        last = traceback.extract_tb(error.__traceback__)
        print([(f.name, f.filename.rsplit("/", 1)[-1]) for f in last])


y = x.exp()
y.sum().backward()
attempt("second", lambda: y.sum().backward())
attempt("second grad", lambda: torch.autograd.grad(y.sum(), x))
h = x * 1
y = h * h
h.add_(1)
attempt("in place", lambda: y.sum().backward())
h = x * 1
y = h.relu()
y.mul_(2)
attempt("in place output", lambda: y.sum().backward())
attempt("no grad", lambda: torch.ones(2).sum().backward())
attempt("not scalar", lambda: (x * 2).backward())
attempt("shape", lambda: (x * 2).backward(torch.ones(2)))
attempt("unused", lambda: torch.autograd.grad(x.sum(), small(2).requires_grad_()))
attempt("type", lambda: torch.autograd.backward(3))
attempt("inputs", lambda: x.sum().backward(inputs=[]))
attempt("keyword", lambda: x.sum().backward(retain=True))
out = x.sin() * x.cos()
out.sum().backward(inputs=[x], retain_graph=True)
out.sum().backward()
attempt("freed", lambda: out.grad_fn._saved_self)
show("grad", x.grad)
