"""What a function of the standard library puts into a list keeps graphs as what a method does."""

import heapq
import itertools

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)


class Board:
    def __init__(self):
        self.rows, self.ticket = [], itertools.count()

    def submit(self, score):
        heapq.heappush(self.rows, (score, next(self.ticket)))  # warning: GS302 [item]; held_by: GS302


board = Board()
for _ in range(12):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    board.submit(net(torch.randn(8, 4)).pow(2).mean())
