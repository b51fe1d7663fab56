"""Clamped in a function."""

import torch
torch.manual_seed(0)

def squash(z):
    z.clamp_(0, 1)  # warning: GS202 [clone]; modified_by: GS202 GS201
    return z
w = torch.randn(4, requires_grad=True)
z = w.exp()  # created: GS202 GS201
z = squash(z)
loss = z.sum()  # next_read: GS202
loss.backward()  # error: GS201 [clone]; failing_node: GS202
