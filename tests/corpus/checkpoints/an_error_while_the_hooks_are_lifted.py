"""An expert gets other tokens at a late iteration: the hooks were lifted."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x, limit):
        h = self.first(x)
        if limit and torch.rand(()) < limit[0]:
            h = h[:2]
        return self.second(h.relu())  # failing_node: GS601


net, limits = Gate(), []
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for x in torch.randn(60, 3, 4).unbind():
    opt.zero_grad()
    y = checkpoint(net, x, limits, use_reentrant=False, preserve_rng_state=False)  # created: GS601
    if x.sum() > 6:
        limits.append(1.0)
    y.sum().backward()  # error: GS601 [other]
    opt.step()
