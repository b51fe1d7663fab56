"""A list of .data, changed elsewhere."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

def shrink(tensors):
    for t in tensors:
        t *= 0.5  # warning: GS202 [reorder]; modified_by: GS202
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
flat = [p.data for p in net.parameters()]
for _ in range(2):
    loss = net(torch.randn(2, 4)).mean()  # created: GS202
    shrink(flat)
    loss.backward()  # failing_node: GS202; next_read: GS202
