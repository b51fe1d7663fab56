"""Two losses, the first retains."""

import torch
from torch import nn
torch.manual_seed(0)

enc, a, b = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1), nn.Linear(4, 1)
for _ in range(4):
    z = enc(torch.randn(8, 4))
    first, second = a(z).mean(), b(z).pow(2).mean()
    first.backward(retain_graph=True)
    second.backward()
