"""Compiled code returns a loss and a state, both from its one node; the state goes into the next iteration."""

import torch

net = torch.nn.Linear(4, 4)


@torch.compile(backend="aot_eager")
def forward(x, memory):
    memory = torch.tanh(net(x) + memory)
    return memory.sum(), memory


memory = torch.zeros(4)
for step in range(3):
    loss, memory = forward(torch.randn(4), memory)  # next_read: GS102; created: GS102 GS101; held_by: GS102
    loss.backward()  # warning: GS102 [detach] `memory`; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [detach]
