"""A parameter that is given other memory."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

w = nn.Parameter(torch.rand(4))
for i in range(3):
    x = torch.randn(4, requires_grad=True)
    loss = (x * w).sum()  # created: GS202
    w.data = w.data * 0.5  # warning: GS202 [reorder]; modified_by: GS202
    loss.backward()  # failing_node: GS202; next_read: GS202
