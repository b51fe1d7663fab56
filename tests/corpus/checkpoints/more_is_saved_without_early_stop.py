"""The recomputation saves a tensor more than the forward pass, and does not stop before it."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.penalised = nn.Linear(4, 4), False

    def forward(self, x):
        h = self.linear(x).tanh()
        if self.penalised:
            self.penalty = h.pow(2).mean()  # failing_node: GS601
        return h


block = Block()
x = torch.randn(2, 4)
loss = checkpoint(block, x, use_reentrant=False, early_stop=False).sum()  # created: GS601
block.penalised = True
loss.backward()  # error: GS601 [other]
