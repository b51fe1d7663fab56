"""Evaluated by a generator: named inside of it, as what takes its values may train."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
head = nn.Linear(8, 1)
opt = torch.optim.SGD(head.parameters(), lr=0.1)


def apply(module, x):
    return module(x)


def features(batches):
    for x in batches:
        yield apply(net, x).detach()  # advice: GS305 [no_grad]


def step(feature):
    loss = apply(head, feature).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


for epoch in range(5):
    for feature in features(torch.randn(4, 16, 8)):
        step(feature)
