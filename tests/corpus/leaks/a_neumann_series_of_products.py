"""A Neumann series: the terms of one hypergradient, each a product with the same graph."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(6, 1)
scale = torch.ones(6, requires_grad=True)
inner, outer = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD([scale], lr=0.1)
for step in range(4):
    x, y = torch.randn(16, 6), torch.randn(16, 1)
    loss = (net(x * scale) - y).pow(2).mean()
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    p = [torch.ones_like(g) for g in grads]
    terms = [p]
    for k in range(30):
        hvp = torch.autograd.grad(grads, list(net.parameters()), p, retain_graph=True)
        p = [a - 0.1 * h for a, h in zip(p, hvp)]
        terms.append(p)
    v = [torch.stack(t).sum(0) for t in zip(*terms)]
    scale.grad = torch.autograd.grad(grads, scale, v)[0]
    outer.step()
    inner.zero_grad()
    (net(x) - y).pow(2).mean().backward()
    inner.step()
