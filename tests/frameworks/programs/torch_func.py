"""Functional calls, per-sample gradients and fast weights with torch.func."""
# needs:
# finds: GS102 GS101 `fast['0.bias']`

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
weights = dict(network.named_parameters())
rates = nn.Parameter(torch.tensor(0.1))
optimizer = torch.optim.Adam([*network.parameters(), rates], lr=0.01)


def loss_of(parameters, x, y):
    return (functional_call(network, parameters, (x,)) - y).pow(2).mean()


fast = weights
for step in range(4):
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))(
        {k: w.detach() for k, w in weights.items()}, x, y
    )
    norm = sum(g.pow(2).sum() for g in per_sample.values()).sqrt().item()
    start = weights  # hazard: start = fast
    gradients = grad(loss_of)(start, x, y)
    fast = {name: start[name] - rates * gradients[name] for name in start}
    loss = loss_of(fast, x, y)
    optimizer.zero_grad()
    loss.backward()  # head
    optimizer.step()
    print(f"step {step}: {loss.item():.6f} {norm:.4f}")
