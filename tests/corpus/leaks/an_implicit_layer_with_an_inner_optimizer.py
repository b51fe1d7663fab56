"""Implicit layers: each finds its state by its own optimizer, in the middle of a forward pass."""

import torch
from torch import nn

torch.manual_seed(0)

layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
opt = torch.optim.Adam(layers.parameters())


def solved(layer, x):
    z = torch.zeros(x.shape, requires_grad=True)
    inner = torch.optim.SGD([z], lr=0.1)
    for _ in range(10):
        energy = (z - torch.tanh(layer(z) + x.detach())).pow(2).sum()
        inner.zero_grad()
        energy.backward(inputs=[z])
        inner.step()
    return torch.tanh(layer(z.detach()) + x)


for step in range(6):
    x, states = torch.randn(8, 4), []
    for layer in layers:
        x = solved(layer, x)
        states.append(x)
    loss = sum(s.pow(2).mean() for s in states)
    opt.zero_grad()
    loss.backward()
    opt.step()
