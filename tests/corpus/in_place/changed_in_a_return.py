"""Changed in a return."""

import torch
torch.manual_seed(0)

def act(x):
    y = x.exp()  # created: GS202 GS201
    return y.mul_(2)  # warning: GS202 [clone]; modified_by: GS202 GS201
w = torch.randn(4, requires_grad=True)
out = act(w)
out.sum().backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
