"""State in a trainer."""

import torch
from torch import nn
torch.manual_seed(0)

class Trainer:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(3, 5), torch.zeros(2, 5)
    def step(self, x):
        self.h = self.cell(x, self.h)  # created: GS102 GS101; held_by: GS102; next_read: GS102
        loss = self.h.pow(2).mean()
        loss.backward()  # warning: GS102 [detach] `self.h`; error: GS101 [detach]
        # ^ failing_node: GS102; freed_by: GS102 GS101
        return loss.item()
    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.randn(2, 3))
Trainer().fit(3)
