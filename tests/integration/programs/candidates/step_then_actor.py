"""A loss that was computed too early."""
# fix: reorder

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(3, 1), nn.Linear(4, 1)
ao, co = torch.optim.Adam(actor.parameters(), 1e-2), torch.optim.Adam(critic.parameters(), 1e-2)
for i in range(3):
    s, a, y = torch.randn(8, 3), torch.randn(8, 1), torch.randn(8, 1)
    critic_loss = F.mse_loss(critic(torch.cat([s, a], 1)).tanh(), y)
    actor_loss = -critic(torch.cat([s, actor(s)], 1)).tanh().mean()
    co.zero_grad()
    critic_loss.backward()
    co.step()
    ao.zero_grad()
    actor_loss.backward()
    ao.step()
