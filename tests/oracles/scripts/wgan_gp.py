"""A Wasserstein GAN with a gradient penalty and a generator step in every third batch."""

import torch
from torch import autograd, nn

critic = nn.Sequential(nn.Linear(2, 24), nn.Softplus(), nn.Linear(24, 1))
maker = nn.Sequential(nn.Linear(5, 24), nn.Softplus(), nn.Linear(24, 2))
critic_steps = torch.optim.RMSprop(critic.parameters(), lr=2e-3)
maker_steps = torch.optim.RMSprop(maker.parameters(), lr=2e-3)


def penalty(real, fake, weight=10.0):
    mix = torch.rand(real.size(0), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(between)
    (slope,) = autograd.grad(
        outputs=score,
        inputs=between,
        grad_outputs=torch.ones_like(score),
        create_graph=True,
        retain_graph=True,
    )
    return weight * ((slope.norm(2, dim=1) - 1) ** 2).mean()


for i in range(36):
    real = torch.randn(16, 2) @ torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    critic_steps.zero_grad()
    with torch.no_grad():
        fake = maker(torch.randn(16, 5))
    wasserstein = critic(fake).mean() - critic(real).mean()
    total = wasserstein + penalty(real, fake)
    total.backward()
    critic_steps.step()
    if i % 3 == 2:
        maker_steps.zero_grad()
        loss = -critic(maker(torch.randn(16, 5))).mean()
        loss.backward()
        maker_steps.step()
    if i % 12 == 11:
        print(i + 1, round(wasserstein.item(), 4), round(loss.item(), 4))
