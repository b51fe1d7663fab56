# raised: AssertionError: the gradient is not finite; help: no
import torch
from torch import nn


def check(grad):
    assert grad.isfinite().all(), "the gradient is not finite"  # raised


torch.manual_seed(0)
layer = nn.Linear(4, 4)
for step in range(3):
    hidden = layer(torch.randn(3, 4).abs())
    hidden.register_hook(check)
    norm = (hidden * (step < 2)).pow(2).sum().sqrt()
    norm.backward()  # note: in backward call 3
