# raised: IndexError: pop from an empty deque; help: once
from collections import deque

import torch
from torch import nn


class Norms(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.given = layer, deque()
        layer.register_forward_hook(lambda module, given, out: self.given.append(given[0].norm()))
        layer.register_full_backward_hook(self.scale)

    def forward(self, x):
        return self.layer(x)  # note: the module

    def scale(self, module, grad_in, grad_out):
        module.ratio = grad_out[0].norm() / self.given.pop()  # raised


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), Norms(nn.Linear(4, 2)))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    out = net(torch.randn(3, 4))
    opt.zero_grad()
    out.pow(2).mean().backward(retain_graph=step > 3)  # note: ran this part
    if step > 3:
        out.abs().mean().backward()  # note: in backward call 6
    opt.step()
