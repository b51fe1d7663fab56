"""One line in one loop runs training and validation: no line could be put under no_grad."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(4):
    for phase in ("train", "val"):
        net.train(phase == "train")
        for x in torch.randn(3, 16, 8):
            loss = net(x).pow(2).mean()
            if phase == "train":
                opt.zero_grad()
                loss.backward()
                opt.step()
