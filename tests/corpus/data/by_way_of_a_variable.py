"""By way of a variable."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 1))
def decay():
    for p in net.parameters():
        d = p.data
        if d.dim() > 1:
            d.mul_(0.9)  # warning: GS202 [reorder]; modified_by: GS202
for i in range(3):
    loss = net(torch.randn(2, 4)).mean()  # created: GS202
    decay()
    loss.backward()  # failing_node: GS202; next_read: GS202
