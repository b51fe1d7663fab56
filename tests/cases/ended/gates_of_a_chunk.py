# raised: RuntimeError: Output 0 of Split is a view; help: clone
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Linear(4, 8)

    def forward(self, x):
        gate, value = self.both(x).chunk(2, -1)  # note: views
        gate.sigmoid_()  # raised
        return gate * value


torch.manual_seed(0)
Gated()(torch.randn(3, 4)).sum().backward()
