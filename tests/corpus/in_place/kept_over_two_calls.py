"""Kept over two calls."""

import torch
torch.manual_seed(0)

w = torch.randn(3, requires_grad=True)
scale = torch.ones(3)
loss = (w * scale).sum()  # created: GS202 GS201
loss.backward(retain_graph=True)
scale[0] = 2.0  # warning: GS202 [clone]; modified_by: GS202 GS201
loss.backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
