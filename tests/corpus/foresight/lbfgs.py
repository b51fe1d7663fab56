"""LBFGS."""

import torch
from torch import nn
torch.manual_seed(0)

net, x, y = nn.Linear(4, 1), torch.rand(9, 4), torch.rand(9, 1)
opt = torch.optim.LBFGS(net.parameters(), max_iter=5)
def closure():
    opt.zero_grad()
    loss = (net(x) - y).pow(2).mean()
    loss.backward()
    return loss
for _ in range(3):
    print(opt.step(closure).item())
