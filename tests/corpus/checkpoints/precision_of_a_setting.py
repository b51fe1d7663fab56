"""A setting turns autocast on; it is another one by the time of the backward call."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    half = True

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            return self.second(torch.relu(self.first(x)))  # failing_node: GS601


def teach(block, x):
    block.half = True
    out = checkpoint(block, x, use_reentrant=False)  # created: GS601
    block.half = False
    with torch.no_grad():
        exact = block(x)
    (out.float() - exact).square().mean().backward()  # error: GS601 [other]


teach(Block(), torch.randn(2, 4))
