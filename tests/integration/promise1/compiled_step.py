"""A compiled function that calls backward and steps an optimizer itself, and one whose state fails the second time."""

import torch
from _show import show, small
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def train(x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


for n in range(3):
    show("loss", train(small(3, 4, seed=n)))
show("weights", *model.parameters())
w = small(4, 4, seed=1).requires_grad_()
memory = small(4, seed=2)


@torch.compile(backend="aot_eager")
def remember(x):
    global memory
    memory = torch.tanh(x @ w + memory)
    memory.sum().backward()


try:
    for n in range(2):
        remember(small(4, seed=n))
except RuntimeError as error:
    print(str(error).splitlines()[0])
show("w", w.grad)
