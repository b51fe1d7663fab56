"""An average of weights and a copy of them, for a target."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net, ema, target = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3))
for step in range(4):
    x = torch.randn(3, 4)
    wanted = target(x).detach() + ema(x).detach()
    loss = (net(x) - wanted).pow(2).mean()
    for e, t, p in zip(ema.parameters(), target.parameters(), net.parameters()):
        e.data.mul_(0.9).add_(p.data, alpha=0.1)
        if step % 2:
            t.data.copy_(p.data)
    net.zero_grad()
    loss.backward()
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.1)
