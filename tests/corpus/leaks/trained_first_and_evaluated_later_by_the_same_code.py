"""Long trained, so that the hooks are lifted, then evaluated: what was trained meanwhile counts."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def loss_of(x):
    return net(x).pow(2).mean()


def step(training):
    loss = loss_of(torch.randn(16, 8))
    if training:
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


for _ in range(40):
    step(True)
for _ in range(10):
    step(True)
    for _ in range(5):
        step(False)  # advice: GS305 [no_grad]
