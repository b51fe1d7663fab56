"""Dropout, normalisation and activations in place."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(
    nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(),
    nn.Linear(108, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, 1),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    a, b = net(torch.randn(4, 1, 8, 8)), net(torch.randn(4, 1, 8, 8))
    (a.mean() + b.mean()).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
