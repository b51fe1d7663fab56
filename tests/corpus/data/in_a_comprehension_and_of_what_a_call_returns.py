"""In a comprehension, and of what a call returns."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(2):
    loss = net(torch.randn(2, 4)).mean()  # created: GS202
    [list(m.parameters())[0].data.mul_(0.9) for m in net if hasattr(m, "weight")]
    # ^ warning: GS202 [reorder]; modified_by: GS202
    loss.backward()  # failing_node: GS202; next_read: GS202
