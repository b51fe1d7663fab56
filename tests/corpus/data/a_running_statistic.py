"""A running statistic."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
    def forward(self, x):
        y = self.lin(x) * self.scale  # created: GS202
        self.scale.data.mul_(0.9).add_(y.data.mean(0), alpha=0.1)  # warning: GS202 [clone]
        # ^ modified_by: GS202
        return y
net = Scale()
for _ in range(3):
    loss = net(torch.randn(2, 3)).pow(2).mean()  # next_read: GS202
    loss.backward()  # failing_node: GS202
