"""Two tasks of one optimizer."""
# fix: sum_losses

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
enc = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
a, b = nn.Linear(8, 1), nn.Linear(8, 3)
opt = torch.optim.Adam([*enc.parameters(), *a.parameters(), *b.parameters()], 1e-2)
for i in range(3):
    h = enc(torch.randn(8, 4))
    la = a(h).pow(2).mean()
    lb = F.cross_entropy(b(h), torch.randint(0, 3, (8,)))
    opt.zero_grad()
    la.backward()
    lb.backward()
    opt.step()
