"""In a method that a trainer calls."""

import torch
from torch import nn
torch.manual_seed(0)

class Trainer:
    def __init__(self):
        self.net, self.center = nn.Linear(3, 3), torch.zeros(3)
    def loss(self, x):
        out = torch.tanh(self.net(x))
        value = (out * self.center).sum() + out.pow(2).sum()
        # ^ created: GS202 GS201
        self.update(out)
        return value
    @torch.no_grad()
    def update(self, out):
        self.center.mul_(0.9).add_(out.mean(0))  # warning: GS202 [clone]
        # ^ modified_by: GS202 GS201
    def fit(self):
        for _ in range(3):
            loss = self.loss(torch.randn(4, 3))
            loss.backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
Trainer().fit()
