"""An evaluation that comes when the training has long been the same from call to call."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)


def train(count):
    for _ in range(count):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def evaluate(net, count=4):
    return [net(torch.randn(200, 4)).mean().item() for _ in range(count)]  # created: GS305


train(60)
for _ in range(10):
    train(10)
    evaluate(net)  # advice: GS305 [no_grad]
