"""A generator that trains, of which only the last loss is wanted."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
codes = {}

def code(name):
    if name not in codes:
        codes[name] = net(torch.ones(3))  # created: GS102 GS101; held_by: GS102
    return codes[name]  # next_read: GS102

def fit(epochs):
    for _ in range(epochs):
        loss = code("a").square().mean()
        opt.zero_grad()
        loss.backward()
        # ^ warning: GS102 [recompute] `codes['a']`; error: GS101 [recompute]
        # ^ failing_node: GS102; freed_by: GS102 GS101
        opt.step()
        yield loss.item()

*_, last = fit(3)
