"""What a parametrization computes is cached around a loop whose iterations each call backward."""

import torch
from torch import nn
from torch.nn.utils import parametrize

net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
with parametrize.cached():
    for step in range(3):
        loss = net(torch.randn(8, 4)).pow(2).mean()  # created: GS102 GS101; next_read: GS102
        opt.zero_grad()
        loss.backward()  # warning: GS102 [reorder] `<cached weight>`; freed_by: GS102 GS101
        # ^ failing_node: GS102; error: GS101 [reorder]
        opt.step()
