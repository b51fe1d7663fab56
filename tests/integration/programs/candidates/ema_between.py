"""An average of weights between loss and backward."""
# fix: reorder

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
avg = [q.clone() for q in net.parameters()]
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(3):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    with torch.no_grad():
        for q, a in zip(net.parameters(), avg):
            a.mul_(0.9).add_(q, alpha=0.1)
            q.copy_(a)
    opt.zero_grad()
    loss.backward()
    opt.step()
