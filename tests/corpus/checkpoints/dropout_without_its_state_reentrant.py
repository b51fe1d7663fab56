"""The same with a reentrant checkpoint, which shows no more than its output."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 8), nn.Tanh())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    opt.zero_grad()
    x = torch.randn(4, 8, requires_grad=True)
    y = checkpoint(net, x, use_reentrant=True, preserve_rng_state=False)  # created: GS601
    y.sum().backward()  # warning: GS601 [other]
    opt.step()
