"""A function reads a state of the module and stores it anew."""

import torch

net = torch.nn.Linear(4, 4)
memory = torch.zeros(4)


def step(x):
    global memory
    memory = torch.tanh(net(x) + memory)  # next_read: GS102; created: GS102 GS102 GS101; held_by: GS102
    loss = memory.pow(2).sum()
    loss.backward()  # warning: GS102 [detach] `memory`; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [detach]


for _ in range(3):
    step(torch.randn(4))
