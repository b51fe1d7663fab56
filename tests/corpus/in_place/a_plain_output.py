"""A plain output."""

import torch
from torch import nn
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
y = torch.sigmoid(w * 2)  # created: GS202 GS201
y += 1  # warning: GS202 [clone, edit]; modified_by: GS202 GS201; becomes: y = y + 1
y.sum().backward()  # error: GS201 [clone, edit]; failing_node: GS202; next_read: GS202
