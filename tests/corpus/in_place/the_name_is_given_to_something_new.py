"""The name is given to something new."""

import torch
torch.manual_seed(0)

w = torch.randn(3, requires_grad=True)
for _ in range(3):
    y = w.exp()
    y += 1
    y = w.sin()
    loss = y.sum()
    loss.backward()
