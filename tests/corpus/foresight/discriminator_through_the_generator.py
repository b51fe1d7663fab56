"""Discriminator through the generator."""

import torch
from torch import nn
torch.manual_seed(0)

gen, dis = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
opt_d = torch.optim.SGD(dis.parameters(), lr=0.1)
for _ in range(2):
    fake = gen(torch.randn(5, 2))  # created: GS102 GS101; held_by: GS102
    d_loss = dis(fake).mean()
    d_loss.backward()  # warning: GS102 [detach] `fake`; freed_by: GS102 GS101
    opt_d.step()
    g_loss = -dis(fake).mean()  # next_read: GS102
    g_loss.backward()  # error: GS101 [detach]; failing_node: GS102
