"""Meta-learning with inner loops of many steps, each of them run backward in the end."""

import torch

torch.manual_seed(0)
start = torch.randn(6, 1, requires_grad=True)
opt = torch.optim.SGD([start], lr=0.1)
for task in range(3):
    w = start
    for step in range(30):
        loss = (torch.randn(8, 6) @ w).tanh().pow(2).mean()
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        w = w - 0.1 * g
    opt.zero_grad()
    (torch.randn(8, 6) @ w).pow(2).mean().backward()
    opt.step()
