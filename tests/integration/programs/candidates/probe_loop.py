"""The rows of a Jacobian."""
# fix: retain_graph

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
x = torch.randn(4, requires_grad=True)
y = net(x)
rows = []
for k in range(3):
    (row,) = torch.autograd.grad(y[k], x)
    rows.append(row)
jac = torch.stack(rows)
print(jac.shape)
