"""An array of numpy keeps the losses: no walk over Python objects sees into it."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = np.empty(64, dtype=object)
for step in range(40):
    loss = net(torch.randn(8, 4)).pow(2).mean()  # warning: GS302 [other]; created: GS302
    opt.zero_grad()
    loss.backward()
    opt.step()
    log[step] = loss
