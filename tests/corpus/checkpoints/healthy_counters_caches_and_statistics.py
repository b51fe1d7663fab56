"""What changes from pass to pass, and changes nothing of what is computed: healthy."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.mask, self.calls = None, 0
        self.register_buffer("load", torch.zeros(8))

    def forward(self, x):
        self.calls += 1
        if self.mask is None:
            self.mask = torch.ones(8)
        h = self.norm(self.linear(x)) * self.mask
        with torch.no_grad():
            self.load += h.gt(0).float().sum(0)
        return torch.relu(h)


block = Block()
opt = torch.optim.Adam(block.parameters())
for step in range(40):
    opt.zero_grad()
    x = torch.randn(16, 8, requires_grad=True)
    y = checkpoint(block, x, use_reentrant=step % 2 == 0, preserve_rng_state=False)
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(block, y, use_reentrant=False)
    y.float().square().mean().backward()
    opt.step()
