"""Two nets in turn, the critic's weights clipped."""
# gradients: right

import torch
from torch import nn
torch.manual_seed(0)

made = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
opt_m, opt_c = torch.optim.RMSprop(made.parameters()), torch.optim.RMSprop(critic.parameters())
for epoch in range(3):
    for p in critic.parameters():
        p.requires_grad = True
    for _ in range(2):
        fake = made(torch.randn(5, 2))
        for p in critic.parameters():
            p.data.clamp_(-0.3, 0.3)
        opt_c.zero_grad()
        loss_real = critic(torch.randn(5, 3)).mean()
        loss_real.backward()
        loss_fake = -critic(fake.detach()).mean()
        loss_fake.backward()
        opt_c.step()
    for p in critic.parameters():
        p.requires_grad = False
    opt_m.zero_grad()
    loss = critic(made(torch.randn(5, 2))).mean()
    loss.backward()
    opt_m.step()
    print(f"{loss.data.item():.1f}")
