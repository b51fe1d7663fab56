"""One function runs training and validation: the call for the validation is named."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def run(batches, training):
    net.train(training)
    total = 0.0
    for x in batches:
        loss = net(x).pow(2).mean()
        if training:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item()
    return total


for epoch in range(4):
    run(torch.randn(3, 16, 8), training=True)
    run(torch.randn(3, 16, 8), training=False)  # advice: GS305 [no_grad]
