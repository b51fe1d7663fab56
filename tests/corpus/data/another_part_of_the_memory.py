"""Another part of the memory."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

flat = nn.Parameter(torch.rand(4, 6))
for _ in range(3):
    x = torch.randn(4, requires_grad=True)
    loss = (x * flat[:, 1]).sum() + (flat[1] * flat[0]).sum()
    flat.data[2:, 2:] = 7.0
    flat.data[2:, 0].zero_()
    loss.backward()
