"""The state that a module in a model carries is known to the program by another name; nothing cuts it."""

import torch
from torch import nn
torch.manual_seed(0)

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(3, 3)
        self.h = torch.zeros(1, 3)
    def forward(self, x):
        self.h = self.cell(x, self.h)  # created: GS102 GS101; held_by: GS102; next_read: GS102
        return self.h
rnn = Cell()
model = nn.Sequential(rnn, nn.Linear(3, 1))
for _ in range(4):
    out = model(torch.ones(1, 3))
    out.sum().backward()  # warning: GS102 [detach]
    # ^ error: GS101 [detach]; freed_by: GS102 GS101; failing_node: GS102
