"""A state kept by retain_graph."""
# fix: detach

import torch
from torch import nn

torch.manual_seed(0)
cell = nn.RNNCell(3, 5)
opt = torch.optim.SGD(cell.parameters(), 0.1)
h = torch.zeros(2, 5)
for i in range(3):
    h = cell(torch.randn(2, 3), h)
    loss = h.pow(2).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
