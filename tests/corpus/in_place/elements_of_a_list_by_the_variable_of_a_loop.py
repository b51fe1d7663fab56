"""Elements of a list, by the variable of a loop."""

import torch
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
ys = [torch.exp(w * k) for k in range(3)]  # created: GS202 GS201
for y in ys:
    y.add_(1)  # warning: GS202 [clone]; modified_by: GS202 GS201
loss = torch.stack(ys).sum()  # next_read: GS202
loss.backward()  # error: GS201 [clone]; failing_node: GS202
