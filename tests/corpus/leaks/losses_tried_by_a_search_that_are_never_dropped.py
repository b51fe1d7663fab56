"""A line search keeps every loss that it has tried, over all steps."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


class Search:
    def __init__(self):
        self.tried = []

    def __call__(self, x, y):
        w, losses = net.weight, []
        for i in range(5):
            loss = (x @ w.T - y).pow(2).mean()
            (g,) = torch.autograd.grad(loss, w, retain_graph=True)
            w = w - 0.01 * g
            losses.append(loss)
        self.tried.extend(losses)  # warning: GS302 [item]; held_by: GS302
        return sum(losses) / len(losses)


search = Search()
for step in range(12):
    opt.zero_grad()
    search(torch.randn(16, 6), torch.randn(16, 1)).backward()
    opt.step()  # advice: GS502 [other]
