"""Dropout is off by the time of the backward call, which finds no mask in the recomputation."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def step(x):
    opt.zero_grad()
    net.train()
    out = checkpoint(net, x, use_reentrant=False)  # created: GS601; failing_node: GS601
    loss = out.pow(2).mean()
    net.eval()
    accuracy = (net(x).argmax(-1) == 0).float().mean()
    loss.backward()  # error: GS601 [other]
    opt.step()
    return accuracy


step(torch.randn(8, 4))
