"""Dropout draws another mask in the recomputation: the gradients are those of another network."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 8), nn.Tanh())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    opt.zero_grad()
    x = torch.randn(4, 8)
    y = checkpoint(net, x, use_reentrant=False, preserve_rng_state=False)
    # ^ created: GS601; failing_node: GS601
    y.sum().backward()  # warning: GS601 [other]
    opt.step()
