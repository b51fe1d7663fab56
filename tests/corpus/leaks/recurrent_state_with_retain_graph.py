"""Recurrent state with retain graph."""

import torch
from torch import nn
torch.manual_seed(0)

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.memory = nn.GRUCell(3, 8), torch.zeros(2, 8)

    def forward(self, x):
        self.memory = self.rnn(x, self.memory)  # held_by: GS301
        return self.memory.mean()

model = Tagger()
for step in range(10):
    model(torch.randn(2, 3)).backward(retain_graph=True)  # warning: GS301 [detach]
