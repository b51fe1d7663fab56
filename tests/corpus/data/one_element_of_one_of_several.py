"""One element of one of several."""
# gradients: wrong

import torch
torch.manual_seed(0)

ws = [torch.rand(3, requires_grad=True) for _ in range(3)]
loss = (ws[0] * ws[1] * ws[2]).sum()  # created: GS202
for i in range(2, 3):
    ws[i].data[0] = 5.0  # warning: GS202 [reorder]; modified_by: GS202
loss.backward()  # failing_node: GS202; next_read: GS202
