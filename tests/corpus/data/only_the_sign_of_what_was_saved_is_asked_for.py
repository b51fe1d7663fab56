"""Only the sign of what was saved is asked for."""
# gradients: right

import torch
torch.manual_seed(0)

w = torch.randn(5, 4, requires_grad=True)
for _ in range(3):
    h = torch.relu(torch.randn(3, 5) @ w)
    h.data.mul_(2)
    loss = h.sum()
    loss.backward()
