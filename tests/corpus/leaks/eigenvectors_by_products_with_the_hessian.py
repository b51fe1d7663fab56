"""Power iteration on a Hessian, by products with one kept graph, before training begins."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
params = [*net.parameters()]
opt = torch.optim.SGD(params, lr=0.1)


def top_eigenvalue(x):
    grads = torch.autograd.grad(net(x).pow(2).mean(), params, create_graph=True)
    v, quotients = [torch.randn_like(p) for p in params], []
    for _ in range(40):
        hv = torch.autograd.grad(grads, params, v, retain_graph=True)
        quotients.append(sum((g * h).sum() for g, h in zip(grads, v)))
        norm = torch.cat([h.flatten() for h in hv]).norm()
        v = [h / norm for h in hv]
    return torch.stack(quotients)


for step in range(6):
    x = torch.randn(16, 6)
    loss = net(x).pow(2).mean() + 1e-3 * top_eigenvalue(x).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
