"""A temporal difference for two losses."""
# fix: detach

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
pi, vf = nn.Linear(8, 2), nn.Linear(8, 1)
po = torch.optim.Adam([*body.parameters(), *pi.parameters()], 1e-2)
vo = torch.optim.Adam(vf.parameters(), 1e-2)
for i in range(3):
    o, ret = torch.randn(8, 3), torch.randn(8)
    h = body(o)
    d = torch.distributions.Categorical(logits=pi(h))
    a = d.sample()
    v = vf(h.detach()).squeeze(-1)
    td_error = ret - v
    value_loss = td_error.pow(2).mean()
    vo.zero_grad()
    value_loss.backward()
    vo.step()
    policy_loss = -(d.log_prob(a) * td_error).mean()
    po.zero_grad()
    policy_loss.backward()
    po.step()
