"""A state that waits in a queue for the next step."""

import queue

import torch
from torch import nn
torch.manual_seed(0)

net, states = nn.Linear(4, 4), queue.SimpleQueue()


def step(x):
    h = states.get() if not states.empty() else torch.zeros(4)  # next_read: GS102
    h = torch.tanh(net(x) + h)  # created: GS102 GS102 GS101
    states.put(h)  # held_by: GS102
    h.pow(2).sum().backward()  # warning: GS102 [recompute]; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [recompute]


for _ in range(3):
    step(torch.randn(4))
