"""One evaluation after the training: the line in its loop is named, not the call around it."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def predict(net, x):
    return net(x).squeeze(1)


def evaluate(net):
    hits = 0
    for _ in range(40):
        out = predict(net, torch.randn(16, 8))  # advice: GS305 [no_grad]
        hits += int((out > 0).sum())
    return hits


for _ in range(5):
    loss = predict(net, torch.randn(16, 8)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
evaluate(net)
