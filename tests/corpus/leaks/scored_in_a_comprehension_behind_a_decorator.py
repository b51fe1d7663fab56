"""Scored in a comprehension, by a function behind a decorator that the training goes through too."""

import functools

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@logged
def loss_of(x):
    return net(x).pow(2).mean()


def main():
    for epoch in range(4):
        for _ in range(3):
            opt.zero_grad()
            loss_of(torch.randn(16, 8)).backward()
            opt.step()
        scores = [loss_of(x).item() for x in torch.randn(3, 16, 8)]  # advice: GS305 [no_grad]
        assert len(scores) == 3


main()
