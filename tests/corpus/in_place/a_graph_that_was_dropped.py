"""A graph that was dropped."""

import torch
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
y = w.exp()
z = y.sum()
y += 1
del z
y = w.exp()
y.sum().backward()
