"""The outer losses of meta-learning are kept, beside an inner loop that is run in the end."""

import torch
from torch import nn

torch.manual_seed(0)

start = torch.randn(6, 1, requires_grad=True)
opt = torch.optim.SGD([start], lr=0.1)
curve = {"meta": []}
for task in range(12):
    w = start
    for step in range(5):
        loss = (torch.randn(8, 6) @ w).tanh().pow(2).mean()
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        w = w - 0.1 * g
    meta = (torch.randn(8, 6) @ w).pow(2).mean()
    opt.zero_grad()
    meta.backward()
    opt.step()
    curve["meta"].append(meta)  # warning: GS302 [item]; held_by: GS302
