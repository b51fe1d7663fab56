"""What a parametrization computes is cached in each iteration, and around a loop that only adds losses."""

import torch
from torch import nn
from torch.nn.utils import parametrize

net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    with parametrize.cached():
        loss = net(torch.randn(8, 4)).pow(2).mean() + net(torch.randn(8, 4)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
with parametrize.cached():
    total = torch.zeros(())
    for step in range(3):
        total = total + net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    total.backward()
    opt.step()
with parametrize.cached():
    for x in [torch.randn(8, 4)]:
        net(x).pow(2).mean().backward()
