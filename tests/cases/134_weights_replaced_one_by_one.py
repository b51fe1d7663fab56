# expect: {"error": null, "raise_line": null, "culprit_line": null, "free_line": null, "leak": false, "loop_line": 30, "fix": "none", "group": "meta"}
# CLEAN: weights in a list, each replaced by one that is computed of it; no iteration's graph is kept.

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
names = [name for name, _ in net.named_parameters()]
rates = {name: torch.full_like(p, -2.0).requires_grad_() for name, p in net.named_parameters()}
opt = torch.optim.SGD([*net.parameters(), *rates.values()], lr=0.1)
batches = torch.randn(10, 8, 1)


def loss_of(weights, batch):
    return functional_call(net, weights, (batch,)).pow(2).mean()


for batch in batches:
    fast = dict(net.named_parameters())
    for _ in range(2):
        grads = torch.autograd.grad(loss_of(fast, batch), list(fast.values()), create_graph=True)
        fast = {n: p - F.softplus(rates[n]) * g for (n, p), g in zip(fast.items(), grads)}
    opt.zero_grad()
    loss_of(fast, batch).backward()
    opt.step()

theta = [each.detach() for each in [*net.parameters(), *rates.values()]]
for batch in batches:
    theta = [each.detach().requires_grad_() for each in theta]
    slow, raw = dict(zip(names, theta[:4])), dict(zip(names, theta[4:]))
    for _ in range(2):
        grads = torch.autograd.grad(loss_of(slow, batch), list(slow.values()), create_graph=True)
        slow = {n: slow[n] - torch.log1p(raw[n].exp()) * g for n, g in zip(names, grads)}
    outer = torch.autograd.grad(loss_of(slow, batch), theta)
    theta = [each - 0.1 * g for each, g in zip(theta, outer)]
