"""One target for two critics."""
# fix: detach

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
q1, q2 = nn.Linear(4, 1), nn.Linear(4, 1)
t = nn.Linear(4, 1)
policy = nn.Linear(3, 1)
o1, o2 = torch.optim.Adam(q1.parameters(), 1e-2), torch.optim.Adam(q2.parameters(), 1e-2)
for i in range(3):
    s, a, s2, r = torch.randn(8, 3), torch.randn(8, 1), torch.randn(8, 3), torch.randn(8, 1)
    backup = r + 0.9 * t(torch.cat([s2, torch.tanh(policy(s2))], 1)).tanh()
    l1 = F.mse_loss(q1(torch.cat([s, a], 1)), backup)
    o1.zero_grad()
    l1.backward()
    o1.step()
    l2 = F.mse_loss(q2(torch.cat([s, a], 1)), backup)
    o2.zero_grad()
    l2.backward()
    o2.step()
