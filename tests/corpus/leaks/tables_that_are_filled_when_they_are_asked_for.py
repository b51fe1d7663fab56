"""Tables of graphs, one for each of the cases there are, filled when they are first asked for."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


class Tables:
    def __init__(self):
        self.of = {}

    def __getitem__(self, case):
        if case not in self.of:
            self.of[case] = net(torch.eye(4)[case % 4]) * case
        return self.of[case]


tables = Tables()
for step in range(64):
    target = tables[(step * step) % 13].item()
    loss = (net(torch.randn(8, 4)) - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
