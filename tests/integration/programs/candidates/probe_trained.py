"""A penalty on a gradient."""
# fix: create_graph

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(3):
    x = torch.randn(8, 4, requires_grad=True)
    out = net(x)
    (g,) = torch.autograd.grad(out.sum(), x)
    loss = out.pow(2).mean() + (g.norm(dim=1) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
