"""Closures: LBFGS with line search, and SAM-like steps of two forwards."""

import torch
from _show import show, small

w = small(6).requires_grad_()
calls = 0
optimizer = torch.optim.LBFGS([w], max_iter=8, line_search_fn="strong_wolfe")


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = (1 - w[:-1]).square().sum() + 100 * (w[1:] - w[:-1].square()).square().sum()
    loss.backward()
    return loss


for _ in range(3):
    print(optimizer.step(closure).item().hex(), calls)
show("w", w)
sgd = torch.optim.SGD([w], lr=0.01, momentum=0.9)
for _ in range(3):
    closure()
    with torch.no_grad():
        offset = 0.05 * w.grad / w.grad.norm()
        w.add_(offset)
    closure()
    with torch.no_grad():
        w.sub_(offset)
    sgd.step()
show("w", w)
