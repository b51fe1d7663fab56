"""Outputs in an attribute."""

import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.outputs = []

    def step(self, x, y):
        out = self.net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        self.outputs.append({"loss": loss, "out": out})  # warning: GS302 [detach]; held_by: GS302
        return loss.item()

trainer = Trainer()
for batch in range(12):
    trainer.step(torch.randn(8, 6), torch.randint(0, 3, (8,)))
