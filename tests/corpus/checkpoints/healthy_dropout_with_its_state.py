"""Dropout whose state is kept, nested checkpoints, graphs that are run twice, and no early stop: healthy."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(8, 32), nn.Dropout(0.5), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8)
)


def within(x, reentrant):
    return checkpoint(net, x.tanh(), use_reentrant=reentrant) * x


for step in range(12):
    x = torch.randn(4, 8, requires_grad=True)
    with set_checkpoint_early_stop(step % 3 > 0):
        y = checkpoint(within, x, step % 2 == 0, use_reentrant=False)
        z = checkpoint_sequential(net, 2, x, use_reentrant=step % 4 == 0)
    y.sum().backward(retain_graph=True)
    (y * 2).sum().backward()
    z.sum().backward()
