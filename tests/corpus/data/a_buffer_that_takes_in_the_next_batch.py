"""A buffer that takes in the next batch."""
# gradients: wrong

import torch
torch.manual_seed(0)

w, batch = torch.randn(3, requires_grad=True), torch.ones(3)
for _ in range(3):
    loss = (w * batch).sum()  # created: GS202
    batch.data.copy_(torch.randn(3))  # warning: GS202 [clone]; modified_by: GS202
    loss.backward()  # failing_node: GS202; next_read: GS202
