"""torch.compile with the aot_eager backend: graph breaks, two outputs, retain_graph, an uncaught graph freed twice."""

import torch
from _show import show, small
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
compiled = torch.compile(model, backend="aot_eager")
x = small(3, 4)
for _ in range(2):
    compiled(x).square().mean().backward()
show("grads", *(p.grad for p in model.parameters()))


@torch.compile(backend="aot_eager")
def pair(x, w):
    h = (x @ w).sin()
    return h.exp().sum(), h.cos().sum()


w = small(4, 4, seed=1).requires_grad_()
first, second = pair(x, w)
print(type(first.grad_fn).__name__)
first.backward(retain_graph=True)
second.backward()
show("pair", w.grad)
first, second = pair(x, w)
first.backward()
try:
    second.backward()
except RuntimeError as error:
    print(str(error).splitlines()[0])


@torch.compile(backend="aot_eager")
def broken(x, w):
    h = (x @ w).relu()
    torch._dynamo.graph_break()
    return h.exp().mean()


broken(x, w).backward()
show("broken", w.grad)
print(
    sorted(torch._dynamo.utils.counters["graph_break"].values()),
    torch._dynamo.utils.counters["stats"]["unique_graphs"],
)
