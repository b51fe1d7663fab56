"""A penalty of the gradients of each layer: thirty calls build what one call runs."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(30)))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(4, 8, requires_grad=True)
    h, penalties = x, []
    for layer in net:
        h = layer(h)
        (g,) = torch.autograd.grad(h.sum(), x, create_graph=True)
        penalties.append(g.pow(2).mean())
    opt.zero_grad()
    (h.pow(2).mean() + sum(penalties)).backward()
    opt.step()
