"""A transform of torch.func captures a tensor that was made once and has a graph."""

import torch
from torch.func import grad

weight = torch.randn(3, requires_grad=True)
scale = weight.exp()  # created: GS101
for _ in range(3):
    step = grad(lambda x: (x * scale).sin().sum())(torch.randn(3))
    step.sum().backward()  # error: GS101 [recompute]; freed_by: GS101
