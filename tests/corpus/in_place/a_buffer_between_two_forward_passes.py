"""A buffer between two forward passes."""

import torch
from torch import nn
torch.manual_seed(0)

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
    def forward(self, x):
        return self.lin(x) * self.scale  # created: GS202 GS201
net = Scale()
a = net(torch.randn(2, 3))
net.scale.mul_(0.9)  # warning: GS202 [clone]; modified_by: GS202 GS201
b = net(torch.randn(2, 3))
(a.sum() + b.sum()).backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
