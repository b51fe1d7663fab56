"""Parameters updated by hand under no_grad."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
x = torch.randn(4, 3)
first = net(x).mean()
second = net(x).pow(2).mean()  # created: GS202 GS201
first.backward()
with torch.no_grad():
    net[2].weight.sub_(0.1 * net[2].weight.grad)  # warning: GS202 [reorder]; modified_by: GS202 GS201
second.backward()  # error: GS201 [reorder]; failing_node: GS202; next_read: GS202
