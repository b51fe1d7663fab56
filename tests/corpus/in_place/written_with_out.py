"""Written with out=."""

import torch
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
table = torch.ones(4)
y = (w * table).sum()  # created: GS202 GS201
torch.add(table, 1, out=table)  # warning: GS202 [clone]; modified_by: GS202 GS201
y.backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
