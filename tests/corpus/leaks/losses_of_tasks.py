"""Losses of tasks: each iteration has a key of its own."""

import torch
from torch import nn
torch.manual_seed(0)

heads = nn.ModuleDict({f"t{i}": nn.Linear(4, 1) for i in range(5)})
losses = {}
for name, head in heads.items():
    losses[name] = head(torch.randn(8, 4)).pow(2).mean()
    losses[name].backward()
