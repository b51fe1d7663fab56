"""A program that meets gradscope at every boundary; it is compared with and without a watch."""

import sys
import threading

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def in_thread():
    weight = torch.ones(3, requires_grad=True)
    (weight.exp() * weight).sum().backward()
    results.append(weight.grad.tolist())


torch.manual_seed(0)
results = []
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for _ in range(14):
    x = torch.randn(5, 4)
    optimizer.zero_grad()
    loss = Square.apply(model(x)).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss)
print([round(loss.item(), 6) for loss in losses])

checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum().backward()
print([round(p.grad.abs().sum().item(), 5) for p in model.parameters()])

thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
print(results)

with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
    kept = (torch.ones(2, requires_grad=True).exp() * 2).sum()
kept.backward()
node = torch.ones(2, requires_grad=True).exp().grad_fn
print(torch.func.grad(lambda w: (w * w).sum())(torch.ones(2)).tolist())
with Counting() as mode:
    torch.ones(2, requires_grad=True).exp().sum().backward()
print(mode.count)

w = torch.full((3,), 2.0, requires_grad=True)
(g,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
print(torch.autograd.grad(g.sum(), w)[0].tolist())

factor = torch.ones(3)
product = (w * factor).sum()
factor += 1
try:
    product.backward()
except RuntimeError as error:
    print(str(error)[:80])  # what follows may be worded by us

shared = w.exp()
first, second = shared.sin().sum(), shared.cos().sum()
first.backward()
try:
    second.backward()
except RuntimeError as error:
    print(str(error)[:60])
print(len(losses), w.grad.tolist())
sys.exit(3)
