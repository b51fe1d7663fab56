"""The target comes out of the network that is trained; its graph is built for nothing."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


pair = Pair()
for step in range(30):
    x = torch.randn(16, 8)
    online = pair(x)
    target = pair(x + 0.1).detach()  # advice: GS305 [no_grad]
    loss = (online - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
