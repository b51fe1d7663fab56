"""A gradient with create_graph=True that nothing is computed from: no_grad would not help."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(16, 8, requires_grad=True)
    out = net(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)  # advice: GS303 [other]
    norm = slope.detach().norm()
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
