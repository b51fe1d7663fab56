"""GAN with a detached fake."""

import torch
from torch import nn
torch.manual_seed(0)

gen, dis = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
opt_g, opt_d = torch.optim.SGD(gen.parameters(), lr=0.1), torch.optim.SGD(dis.parameters(), lr=0.1)
for _ in range(4):
    fake = gen(torch.randn(5, 2))
    opt_d.zero_grad()
    dis(fake.detach()).mean().backward()
    opt_d.step()
    opt_g.zero_grad()
    (-dis(fake).mean()).backward()
    opt_g.step()
