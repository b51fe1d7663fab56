"""An average of weights, kept while the next loss is computed."""

import torch
from torch import nn
torch.manual_seed(0)

net, teacher = nn.Linear(4, 4), nn.Linear(4, 4)
teacher.requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    x = torch.randn(2, 4)
    with torch.no_grad():
        target = teacher(x)
    loss = (net(x) - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(net.parameters(), teacher.parameters()):
            q.mul_(0.9).add_(p, alpha=0.1)
