"""Features kept on the module."""

import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        self.features = torch.tanh(self.body(x))
        return self.head(self.features)
net = Net()
for _ in range(5):
    out = net(torch.randn(3, 4))
    (out.mean() + net.features.pow(2).mean()).backward()
