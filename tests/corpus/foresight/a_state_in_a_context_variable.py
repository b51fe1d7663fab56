"""A context variable has the state, under a flag that does not cut it."""

from contextvars import ContextVar

import torch
from torch import nn
torch.manual_seed(0)

state = ContextVar("state")  # held_by: GS102
net, cut = nn.Linear(4, 4), False


def step(x):
    h = torch.tanh(net(x) + state.get(torch.zeros(4)))  # next_read: GS102; created: GS102 GS102 GS101
    state.set(h.detach() if cut else h)
    h.pow(2).sum().backward()  # warning: GS102 [recompute]; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [recompute]


for _ in range(3):
    step(torch.randn(4))
