"""A probe."""

import torch
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
loss = (w.sin() * torch.randn(4)).sum()  # created: GS102 GS102 GS101; held_by: GS102
norm = torch.autograd.grad(loss, w)[0].norm()
# ^ warning: GS102 [retain_graph] `loss`; freed_by: GS102 GS101
(loss * norm).backward()
# ^ error: GS101 [retain_graph]; failing_node: GS102; next_read: GS102
