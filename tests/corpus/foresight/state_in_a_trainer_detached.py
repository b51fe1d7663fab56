"""State in a trainer, detached."""

import torch
from torch import nn
torch.manual_seed(0)

class Trainer:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(3, 5), torch.zeros(2, 5)
    def step(self, x):
        self.h = self.cell(x, self.h)
        self.h.pow(2).mean().backward()
        self.h = self.h.detach()
    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.randn(2, 3))
Trainer().fit(4)
