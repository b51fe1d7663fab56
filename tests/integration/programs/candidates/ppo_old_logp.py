"""Old probabilities of actions."""
# fix: detach

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(3, 2)
opt = torch.optim.Adam(policy.parameters(), 1e-2)
obs = torch.randn(16, 3)
dist = torch.distributions.Categorical(logits=policy(obs))
act = dist.sample()
old_logp = dist.log_prob(act)
adv = torch.randn(16)
for epoch in range(4):
    logp = torch.distributions.Categorical(logits=policy(obs)).log_prob(act)
    ratio = (logp - old_logp).exp()
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
