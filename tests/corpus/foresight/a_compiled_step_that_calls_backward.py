"""A compiled function steps a state of the module, and calls backward itself."""

import torch

net = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
memory = torch.zeros(4)


@torch.compile(backend="aot_eager")
def step(x):
    global memory
    memory = torch.tanh(net(x) + memory)  # next_read: GS102; held_by: GS102
    loss = memory.pow(2).sum()
    opt.zero_grad()
    loss.backward()  # warning: GS102 [detach] `memory`; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [detach]
    opt.step()


for _ in range(3):
    step(torch.randn(4))  # created: GS102 GS101

# before torch 2.8: no instruction of compiled code has a line after a graph break
