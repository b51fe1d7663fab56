"""torch.func: grad, vjp, jvp, jacrev, jacfwd, hessian, vmap, functional_call; with closures over a watched graph."""

import torch
from _show import show, small
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

x, w = small(4), small(4, 4, seed=1)


def f(x):
    return (w @ x).tanh().pow(2).sum()


show("grad", grad(f)(x), *grad_and_value(f)(x))
out, pull = vjp(lambda t: w @ t.exp(), x)
show("vjp", out, *pull(torch.ones(4)))
show("jvp", *jvp(lambda t: w @ t.exp(), (x,), (torch.ones(4),)))
show("jac", jacrev(lambda t: t.sin() * x)(x), jacfwd(lambda t: t.sin() * x)(x))
show("hessian", hessian(f)(x), grad(lambda t: grad(f)(t).sum())(x))
show("per sample", vmap(grad(f))(small(5, 4)))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
parameters = {name: p.detach() for name, p in model.named_parameters()}
gradients = grad(lambda p: functional_call(model, p, (x,)).sum())(parameters)
show("functional_call", *gradients.values())
leaf = x.clone().requires_grad_()
mixed = leaf.exp() * grad(lambda t: (t.detach() * t).sum())(x)
mixed.sum().backward()
show("mixed", leaf.grad)
inner = grad(lambda t: (t.sin() * leaf).sum())(leaf)
inner.sum().backward()
show("through", leaf.grad)
show("batched", *torch.autograd.grad((w @ leaf).sin(), leaf, torch.eye(4), is_grads_batched=True))
show("jacobian", torch.autograd.functional.jacobian(lambda t: w @ t.exp(), x, vectorize=True))
show("functional hessian", torch.autograd.functional.hessian(f, x))
