"""Two tasks, each with a step."""
# fix: recompute

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
    opt.zero_grad()
    la.backward()
    opt.step()
    lb = F.cross_entropy(b(h), torch.randint(0, 3, (8,)))
    opt.zero_grad()
    lb.backward()
    opt.step()
