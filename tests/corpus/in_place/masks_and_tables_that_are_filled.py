"""Masks and tables that are filled."""

import torch
from torch import nn
torch.manual_seed(0)

emb, out = nn.Embedding(6, 4), torch.zeros(3, 4)
for _ in range(3):
    table = torch.zeros(3, 4)
    mask = torch.ones(3, 4)
    mask[:, 0] = 0
    for row in range(3):
        table[row] = emb(torch.tensor(row)) * mask[row]
    mask = torch.zeros(3, 4)
    table.sum().backward()
