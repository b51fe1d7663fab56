"""A function that is handed the memory."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

def halve(t):
    t.mul_(0.5)  # warning: GS202 [reorder]; modified_by: GS202
    return t
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
loss = net(torch.randn(2, 4)).mean()  # created: GS202
halve(net[2].weight.data)
loss.backward()  # failing_node: GS202; next_read: GS202
