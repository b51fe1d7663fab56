"""Kept graphs that nobody runs again."""

import torch
torch.manual_seed(0)

w, scale = torch.randn(3, requires_grad=True), torch.ones(3)
for _ in range(3):
    loss = (w * scale).sum()
    loss.backward(retain_graph=True)  # advice: GS303 [remove_retain]
    scale.mul_(0.9)
    loss = None
