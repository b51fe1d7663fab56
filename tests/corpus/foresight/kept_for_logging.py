"""Kept for logging."""

import torch
from torch import nn
torch.manual_seed(0)

net, losses, total = nn.Linear(4, 1), [], 0.0
for _ in range(6):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    losses.append(loss)  # warning: GS302 [item]; held_by: GS302
    total += loss  # warning: GS302 [item]; held_by: GS302
print(sum(losses).item(), float(total), f"{losses[0]:.3f}")
