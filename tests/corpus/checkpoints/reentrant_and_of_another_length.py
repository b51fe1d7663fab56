"""A reentrant checkpoint gives an output of another length the second time."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
net = nn.Linear(4, 4)


def sampled(x):
    kept = torch.rand(x.shape[0]) < 0.5
    return net(x[kept]).tanh()


for step in range(5):
    x = torch.randn(40, 4, requires_grad=True)
    y = checkpoint(sampled, x, use_reentrant=True, preserve_rng_state=False)  # created: GS601
    y.sum().backward()  # error: GS601 [other]
