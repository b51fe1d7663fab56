"""A step on a copy of the weights."""
# fix: retain_graph

import torch

torch.manual_seed(0)
w = torch.randn(4, 1, requires_grad=True)
opt = torch.optim.SGD([w], 0.1)
for it in range(2):
    opt.zero_grad()
    total = 0
    fast = w
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    inner = (x @ fast - y).pow(2).mean()
    (g,) = torch.autograd.grad(inner, fast)
    fast = fast - 0.1 * g
    outer = (x @ fast - y).pow(2).mean() + 0.1 * inner
    outer.backward()
    opt.step()
