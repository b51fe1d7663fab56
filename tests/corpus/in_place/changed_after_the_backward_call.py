"""Changed after the backward call."""

import torch
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
for _ in range(3):
    y = torch.sigmoid(w)
    y.sum().backward()
    y.data.zero_()
    with torch.no_grad():
        y += 1
        w -= 0.1 * w.grad
    w.grad = None
