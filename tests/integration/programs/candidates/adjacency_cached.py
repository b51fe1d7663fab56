"""A cache that must be trained."""
# fix: recompute

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e1, self.e2 = nn.Parameter(torch.randn(5, 2)), nn.Parameter(torch.randn(5, 2))
        self.lin = nn.Linear(3, 1)
        self.adj = None

    def forward(self, x):
        if self.adj is None:
            self.adj = torch.softmax(torch.relu(self.e1 @ self.e2.t()), 1)
        return self.lin(self.adj @ x)


net = Net()
opt = torch.optim.Adam(net.parameters(), 1e-2)
for i in range(3):
    loss = net(torch.randn(5, 3)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
