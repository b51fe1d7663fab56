"""The output that a hook was given."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 1))
def scale(module, args, out):
    out.mul_(2)  # warning: GS202 [clone]; modified_by: GS202 GS201
net[1].register_forward_hook(scale)
for _ in range(2):
    out = net(torch.randn(4, 3))  # created: GS202 GS201
    loss = out.mean()  # next_read: GS202
    loss.backward()  # error: GS201 [clone]; failing_node: GS202
