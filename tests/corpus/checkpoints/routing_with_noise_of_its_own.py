"""A router draws its noise anew in the recomputation, and sends other tokens to the experts."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4)
        )

    def forward(self, x):
        scores = torch.sigmoid(self.gate(x))
        with torch.no_grad():
            choice = (scores + torch.rand_like(scores) * 0.2).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            index = (choice == i).nonzero().squeeze(-1)
            weighted = expert(x[index]) * scores[index, i : i + 1]  # failing_node: GS601
            out = out.index_add(0, index, weighted)
        return x + out


layer = Experts()
for step in range(3):
    x = torch.randn(32, 8)
    y = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)  # created: GS601
    y.pow(2).mean().backward()  # error: GS601 [other]
