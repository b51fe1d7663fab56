"""GAN, generator first."""

import torch
from torch import nn
torch.manual_seed(0)

gen, dis = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
for _ in range(4):
    fake = gen(torch.randn(5, 2))
    (-dis(fake).mean()).backward()
    (dis(torch.randn(5, 4)).mean() - dis(fake.detach()).mean()).backward()
