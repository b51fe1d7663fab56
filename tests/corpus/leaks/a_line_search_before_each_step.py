"""A line search: many losses are computed before one step, the first one needs 30 of them."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=1.0)


class Search:
    def __init__(self):
        self.tried = []

    def __call__(self, x, y):
        self.tried = []
        w = net.weight
        for i in range(30):
            loss = (x @ w.T - y).pow(2).mean()
            (g,) = torch.autograd.grad(loss, w, retain_graph=True)
            w = w - 0.01 * g
            self.tried.append(loss)
        return sum(self.tried) / len(self.tried)


search = Search()
for step in range(5):
    opt.zero_grad()
    search(torch.randn(16, 6), torch.randn(16, 1)).backward()
    opt.step()  # advice: GS502 [other]
