"""Spectral normalisation by hand, two passes."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))
        self.u, self.v = (nn.Parameter(torch.randn(4), requires_grad=False) for _ in range(2))
    def forward(self, x):
        self.v.data = nn.functional.normalize(self.w.data.t() @ self.u.data, dim=0)
        # ^ warning: GS202 [clone]; modified_by: GS202
        self.u.data = nn.functional.normalize(self.w.data @ self.v.data, dim=0)
        # ^ warning: GS202 [clone]; modified_by: GS202
        sigma = self.u.dot(self.w.mv(self.v))  # created: GS202 GS202
        return x @ (self.w / sigma)
critic = Spectral()
for _ in range(3):
    real = critic(torch.randn(3, 4)).mean()
    fake = critic(torch.randn(3, 4)).mean()
    (fake - real).backward()  # failing_node: GS202 GS202; next_read: GS202 GS202
