"""One pass in an evaluation that keeps its graph."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
score = net(torch.randn(8, 4)).mean()
for _ in range(3):
    for p in net.parameters():
        p.data.mul_(0.99)
    loss = net(torch.randn(2, 4)).mean()
    loss.backward()
print(f"{score.item():.1f}")
