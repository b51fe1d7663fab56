"""The changed branch is for the log, another is trained."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 4)
for _ in range(3):
    out = net(torch.randn(2, 4))
    shown = torch.sigmoid(out)
    shown.mul_(100).round_()
    loss = out.pow(2).mean()
    loss.backward()
    print(f"{shown.mean().item():.1f}")
