"""A temperature that is trained after the policy."""
# fix: detach

import torch
from torch import nn

torch.manual_seed(0)
policy, q = nn.Linear(3, 2), nn.Linear(4, 1)
log_alpha = torch.zeros(1, requires_grad=True)
p_opt = torch.optim.Adam(policy.parameters(), 1e-2)
a_opt = torch.optim.Adam([log_alpha], 1e-2)
for i in range(3):
    s = torch.randn(8, 3)
    mu, log_sd = policy(s).chunk(2, -1)
    a = mu + log_sd.exp() * torch.randn_like(mu)
    log_prob = -0.5 * (a - mu) ** 2 / log_sd.exp() ** 2 - log_sd
    alpha = log_alpha.exp().detach()
    policy_loss = (alpha * log_prob - q(torch.cat([s, a], 1))).mean()
    p_opt.zero_grad()
    policy_loss.backward()
    p_opt.step()
    alpha_loss = -(log_alpha * (log_prob + 1.0)).mean()
    a_opt.zero_grad()
    alpha_loss.backward()
    a_opt.step()
