"""torch.jit.script and torch.jit.trace, whose profiling executor builds its own nodes."""

import warnings

import torch
from _show import show, small

warnings.simplefilter("ignore")


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(x @ w)
    for _ in range(2):
        h = h * torch.sigmoid(h) + 1.0
    return h.sum()


x, w = small(3, 4), small(4, 4, seed=1).requires_grad_()
scripted = torch.jit.script(step)
for _ in range(4):
    scripted(x, w).backward()
    show("script", w.grad)
traced = torch.jit.trace(step, (x, w))
for _ in range(3):
    traced(x, w).backward()
show("trace", w.grad)
out = scripted(x, w)
out.backward()
try:
    out.backward()
except RuntimeError as error:
    print(str(error).strip().splitlines()[-1][:90])
