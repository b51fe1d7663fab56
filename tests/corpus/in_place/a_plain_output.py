"""A plain output."""

import torch
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
y = torch.sigmoid(w * 2)  # created: GS202 GS201
y += 1  # warning: GS202 [clone]; modified_by: GS202 GS201
y.sum().backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
