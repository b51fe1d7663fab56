"""Inside a long expression."""

import torch
torch.manual_seed(0)

def double(t):
    return t.mul_(2)  # warning: GS202 [clone]; modified_by: GS202 GS201
w = torch.randn(3, requires_grad=True)
y = w.exp()  # created: GS202 GS201
loss = (
    double(y).sum()  # next_read: GS202
    + w.sum()
)
loss.backward()  # error: GS201 [clone]; failing_node: GS202
