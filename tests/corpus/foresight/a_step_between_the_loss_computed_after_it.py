"""A step between, the loss computed after it."""

import torch
from torch import nn
torch.manual_seed(0)

G, D = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
opt = torch.optim.SGD(D.parameters(), lr=0.1)
for _ in range(3):
    fake = G(torch.randn(5, 2))
    before = D(fake)
    D(fake.detach()).mean().backward()
    opt.step()  # warning: GS504 [other]; advice: GS503 [other]
    print(before.mean().item())
    (-D(fake).mean()).backward()
