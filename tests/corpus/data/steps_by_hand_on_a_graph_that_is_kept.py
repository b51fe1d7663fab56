"""Steps by hand on a graph that is kept."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
loss = net(torch.randn(4, 3)).pow(2).mean()  # created: GS202
for i in range(3):
    loss.backward(retain_graph=True)  # failing_node: GS202; next_read: GS202
    for p in net.parameters():
        p.data.sub_(0.1 * p.grad)  # warning: GS202 [reorder]; modified_by: GS202
