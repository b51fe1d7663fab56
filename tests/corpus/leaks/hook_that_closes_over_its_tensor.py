"""Hook that closes over its tensor."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
norms = []

def forward(x):
    z = net[1](net[0](x))
    z.register_hook(lambda g: norms.append(float((g * z).norm())))  # warning: GS304 [detach]
    # ^ held_by: GS304
    return net[2](z)

for step in range(12):
    forward(torch.randn(8, 4)).mean().backward()
