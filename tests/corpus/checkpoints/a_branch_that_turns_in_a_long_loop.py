"""A counter turns a branch at a late iteration, between the pass and its recomputation."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Warmed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.seen = nn.Linear(4, 8), nn.Linear(8, 4), 0

    def forward(self, x):
        self.seen += 1
        h = self.first(x)
        if self.seen % 100 > 79:
            return self.second(torch.cat([h[:, :4].relu(), h[:, 4:].relu()], 1))  # failing_node: GS601
        return self.second(h.relu())


net = Warmed()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(60):
    opt.zero_grad()
    y = checkpoint(net, torch.randn(3, 4), use_reentrant=False)  # created: GS601
    y.sum().backward()  # error: GS601 [other]
    opt.step()
