"""An evaluation that forgot no_grad."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
scores = []
for _ in range(3):
    out = net(torch.randn(2, 4))
    out.clamp_(0.1, 0.9)
    scores.append(out.mean().item())
print(max(scores))
