"""A rollout with forces by autograd.grad: one step for 25 of them, then the state is cut."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters())
state = torch.randn(8, 4)
for update in range(5):
    state = state.detach().requires_grad_()
    path = []
    for t in range(25):
        (force,) = torch.autograd.grad(net(state).sum(), state, create_graph=True)
        state = state - 0.05 * force
        path.append(state)
    loss = torch.stack(path).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # advice: GS502 [other]
