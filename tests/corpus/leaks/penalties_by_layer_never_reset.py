"""The penalties of each layer are kept by name and never reset."""

from collections import defaultdict

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
penalties = defaultdict(list)
for step in range(12):
    x = torch.randn(4, 4, requires_grad=True)
    h, total = x, 0
    for i, layer in enumerate(net):
        h = layer(h)
        (g,) = torch.autograd.grad(h.sum(), x, create_graph=True)
        penalties[i].append(g.pow(2).mean())  # warning: GS302 [item]; held_by: GS302
        total = total + penalties[i][-1]
    opt.zero_grad()
    (h.pow(2).mean() + total).backward()
    opt.step()
