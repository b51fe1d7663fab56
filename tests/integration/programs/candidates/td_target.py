"""A target that is computed once."""
# fix: detach

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
q = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(q.parameters(), 1e-2)
s, s2, r = torch.randn(16, 3), torch.randn(16, 3), torch.randn(16, 1)
td_target = r + 0.9 * q(s2)
for epoch in range(4):
    loss = F.mse_loss(q(s), td_target)
    opt.zero_grad()
    loss.backward()
    opt.step()
