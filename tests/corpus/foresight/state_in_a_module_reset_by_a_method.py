"""State in a module, reset by a method."""

import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.h = nn.RNNCell(3, 5), None
    def reset(self):
        self.h = None
    def forward(self, x):
        self.h = self.cell(x, self.h)
        return self.h
net = Net()
for _ in range(4):
    net.reset()
    for _ in range(3):
        out = net(torch.randn(2, 3))
    out.mean().backward()
