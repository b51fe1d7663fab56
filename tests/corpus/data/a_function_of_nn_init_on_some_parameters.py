"""A function of nn.init, on some parameters."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

def reset(net):
    for name, p in net.named_parameters():
        if name.endswith("weight"):
            nn.init.normal_(p.data)  # warning: GS202 [reorder]; modified_by: GS202
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
loss = net(torch.randn(2, 4)).mean()  # created: GS202
reset(net)
loss.backward()  # failing_node: GS202; next_read: GS202
