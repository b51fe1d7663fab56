"""A step changes the weights between the pass and the call, which a checkpoint does not notice."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), nn.Linear(8, 1)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)


def run(x):
    return body(x)  # failing_node: GS601


for step in range(3):
    h = checkpoint(run, torch.randn(4, 8), use_reentrant=False)  # created: GS601
    head(h.detach()).sum().backward()
    opt.step()
    opt.zero_grad()
    h.square().mean().backward()  # warning: GS601 [other]
