"""A compiled function steps a state of the module that it detaches, and calls backward itself."""

import torch

net = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
memory = torch.zeros(4)


@torch.compile(backend="aot_eager")
def step(x):
    global memory
    memory = torch.tanh(net(x) + memory.detach())
    loss = memory.pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()


for _ in range(3):
    step(torch.randn(4))
