# says: nothing
import torch
from torch import nn


class Enough(Exception):
    pass


def stop(grad):
    raise Enough


torch.manual_seed(0)
layer = nn.Linear(4, 4)
opt = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(4):
    opt.zero_grad()
    early = layer(torch.randn(3, 4))
    early.register_hook(stop)
    try:
        early.sum().backward()
    except Enough:
        pass
    layer(torch.randn(3, 4)).pow(2).sum().backward()
    opt.step()
