"""Double backward for a penalty."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(4):
    x = torch.randn(5, 4, requires_grad=True)
    out = net(x).sum()
    grad, = torch.autograd.grad(out, x, create_graph=True)
    (grad.pow(2).sum() + out).backward()
