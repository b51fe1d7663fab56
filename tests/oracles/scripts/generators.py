"""A loop out of generators: batches, a training step that yields its losses, and a report."""

import itertools

import torch
from torch import nn


def batches(points, size):
    while True:
        for part in points[torch.randperm(len(points))].split(size):
            yield part[:, :2], part[:, 2:]


def training(model, optimizer, stream):
    for x, y in stream:
        hidden = model.encoder(x)
        parts = {
            "value": (model.value(hidden) - y).square().mean(),
            "size": hidden.abs().mean() * 0.01,
        }
        optimizer.zero_grad()
        sum(parts.values()).backward()
        optimizer.step()
        yield {name: part.item() for name, part in parts.items()}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 10), nn.GELU())
        self.value = nn.Linear(10, 1)


x = torch.rand(40, 2)
points = torch.cat([x, x.prod(1, keepdim=True)], 1)
model = Model()
losses = training(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(points, 16))
history = []
for number, parts in enumerate(itertools.islice(losses, 25), 1):
    history.append(parts)
    if number % 5 == 0:
        last = history[-5:]
        print(number, *(f"{name} {sum(p[name] for p in last) / 5:.5f}" for name in parts))
losses.close()
