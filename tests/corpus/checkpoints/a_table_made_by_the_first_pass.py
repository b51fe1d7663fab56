"""What a module computes once and keeps is there already when its checkpoint runs again."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk, self.place = nn.Linear(8, 16), nn.Linear(1, 8)
        self.table = None

    def forward(self, x):
        if self.table is None:
            positions = torch.arange(x.shape[-2], dtype=torch.float32)
            self.table = self.place(positions[:, None]).sin()  # failing_node: GS601
        q, k = self.qk(x + self.table).chunk(2, -1)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ x


attention = Attention()
x = torch.randn(2, 6, 8)
loss = checkpoint(attention, x, use_reentrant=False).square().mean()  # created: GS601
loss.backward()  # error: GS601 [other]
