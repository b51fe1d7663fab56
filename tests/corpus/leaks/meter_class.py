"""Meter class."""

import torch
from torch import nn
torch.manual_seed(0)

class Meter:
    def __init__(self):
        self.sum, self.count = 0, 0

    def update(self, value):
        self.sum = self.sum + value  # warning: GS302 [item]; held_by: GS302
        self.count += 1

net, meter = nn.Linear(4, 1), Meter()
for step in range(10):
    loss = net(torch.randn(8, 4)).abs().mean()
    loss.backward()
    meter.update(loss)
