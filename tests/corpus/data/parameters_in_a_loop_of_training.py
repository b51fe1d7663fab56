"""Parameters, in a loop of training."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for i in range(4):
    loss = net(torch.randn(2, 4)).pow(2).mean()  # created: GS202
    for p in net.parameters():
        p.data -= 0.1  # warning: GS202 [reorder]; modified_by: GS202
    loss.backward()  # failing_node: GS202; next_read: GS202
