"""A smoothed loss for the log."""

import torch
from torch import nn
torch.manual_seed(0)

net, smooth, keep = nn.Linear(4, 1), 0.0, False
for _ in range(4):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward(retain_graph=keep)
    smooth = 0.9 * smooth + 0.1 * loss
    print(f"{smooth:.3f}")
    smooth = smooth.detach()
