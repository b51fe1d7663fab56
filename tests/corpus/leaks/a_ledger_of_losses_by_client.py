"""A ledger of losses by client is added to by item."""

from collections import Counter

import torch
from torch import nn

torch.manual_seed(0)
ledger = Counter()


class Client:
    def __init__(self, name):
        self.name, self.x = name, torch.randn(64, 4)

    def fit(self, weights):
        net = nn.Linear(4, 1)
        net.load_state_dict(weights)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in self.x.split(16):
            loss = net(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            ledger[self.name] += loss  # warning: GS302 [item]; held_by: GS302
        return net.state_dict()


clients, weights = [Client("a"), Client("b")], nn.Linear(4, 1).state_dict()
for round in range(8):
    for client in clients:
        weights = client.fit(weights)
