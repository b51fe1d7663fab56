"""A step by hand between the calls of two losses."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

critic, actor = nn.Linear(4, 1), nn.Linear(3, 4)
for i in range(3):
    critic_loss = critic(torch.randn(5, 4)).pow(2).mean()
    actor_loss = -critic(torch.tanh(actor(torch.randn(5, 3)))).mean()  # created: GS202
    critic_loss.backward()
    for p in critic.parameters():
        p.data.add_(  # warning: GS202 [reorder]; modified_by: GS202
            p.grad,
            alpha=-0.1,
        )
    actor_loss.backward()  # failing_node: GS202; next_read: GS202
