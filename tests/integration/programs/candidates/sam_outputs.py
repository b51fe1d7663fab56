"""One loss, two calls."""
# fix: recompute

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
opt = torch.optim.SGD(net.parameters(), 0.1)
ce = nn.CrossEntropyLoss()
for i in range(3):
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    out = net(x)
    ce(out, y).backward()
    opt.step()
    opt.zero_grad()
    ce(out, y).backward()
    opt.step()
    opt.zero_grad()
