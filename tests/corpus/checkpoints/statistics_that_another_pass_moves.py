"""A batch norm in evaluation: another pass has moved its statistics when the checkpoint runs again."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def frozen(x):
    net.eval()
    out = net(x)  # failing_node: GS601
    net.train()
    return out


for step in range(3):
    x = torch.randn(16, 4)
    adversarial = checkpoint(frozen, x, use_reentrant=False)  # created: GS601
    clean = net(x + 3)
    (adversarial - clean).square().mean().backward()  # warning: GS601 [other]
