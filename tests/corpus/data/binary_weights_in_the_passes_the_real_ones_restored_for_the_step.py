"""Binary weights in the passes, the real ones restored for the step."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
real = [p.data.clone() for p in net.parameters()]
for _ in range(3):
    for p, r in zip(net.parameters(), real):
        r.copy_(p.data)
        p.data.sign_()
    loss = net(torch.randn(2, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for p, r in zip(net.parameters(), real):
        p.data.copy_(r)
    optimizer.step()
