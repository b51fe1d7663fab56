"""An attribute that a descriptor stores, under a name that only the program knows."""

import torch
from torch import nn

torch.manual_seed(0)


class Blended:
    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, owner, cls=None):
        return self if owner is None else getattr(owner, self.slot)

    def __set__(self, owner, value):
        old = getattr(owner, self.slot, 0.0)
        setattr(owner, self.slot, 0.9 * old + 0.1 * value)  # warning: GS302 [no_grad]; held_by: GS302


class Tracker:
    template = Blended()

    def __init__(self):
        self.net = nn.Linear(4, 4)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def update(self, x):
        out = self.net(x)
        self.opt.zero_grad()
        out.pow(2).mean().backward()
        self.opt.step()
        self.template = out.mean(0)


tracker = Tracker()
for _ in range(20):
    tracker.update(torch.randn(8, 4))
