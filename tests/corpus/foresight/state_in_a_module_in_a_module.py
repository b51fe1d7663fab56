"""State in a module in a module."""

import torch
from torch import nn
torch.manual_seed(0)

class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.m = nn.Linear(4, 4), torch.zeros(4)
    def forward(self, x):
        y = torch.tanh(self.proj(x) + self.m)  # created: GS102 GS102 GS101; next_read: GS102
        self.m = y.mean(0)  # held_by: GS102
        return y
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.head = Memory(), nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.memory(x))
net = Net()
for _ in range(3):
    net(torch.randn(6, 4)).mean().backward()  # warning: GS102 [detach] `net.memory.m`
    # ^ error: GS101 [detach]; failing_node: GS102; freed_by: GS102 GS101
