"""Tensors can be swapped, as modules do on conversion; torch refuses that while others refer to a tensor."""

import weakref

import torch
from _show import show
from torch import nn

torch.manual_seed(0)
torch.__future__.set_swap_module_params_on_conversion(True)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 2))
frozen = nn.Linear(2, 2).requires_grad_(False)
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
x = torch.ones(3, 4)


def train(steps: int) -> None:
    for _ in range(steps):
        loss = frozen(model(x)).square().sum()
        loss.backward()
        optimizer.step()
    show("loss", loss, *[p.grad for p in model.parameters()])


train(4)
model.double()
frozen.double()
x = x.double()
train(2)
model.load_state_dict({key: each * 2 for key, each in model.state_dict().items()}, assign=True)
train(2)
first, second = torch.ones(2), nn.Parameter(torch.zeros(2))
for given in (second, first), (first, first.clone()):
    try:
        torch.utils.swap_tensors(*given)
        show("swapped", *given)
    except Exception as error:
        print(error)


def fails(work) -> None:
    try:
        work()
    except Exception as error:
        while error is not None:
            print(type(error).__name__, error)
            error = error.__cause__


fails(model.half)
kept = weakref.ref(model[0].weight)
fails(model.float)
print(kept() is model[0].weight)
