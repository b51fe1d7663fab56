"""A GAN that trains the generator first and shows the discriminator detached copies."""

import torch
from torch import nn

LATENT = 6
generator = nn.Sequential(nn.Linear(LATENT, 16), nn.ReLU(), nn.Linear(16, 3))
discriminator = nn.Sequential(nn.Linear(3, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()

for batch in range(30):
    real = torch.randn(12, 3) * 0.5 + 1
    valid, fake = torch.ones(12, 1), torch.zeros(12, 1)

    of_generator.zero_grad()
    made = generator(torch.randn(12, LATENT))
    g_loss = criterion(discriminator(made), valid)
    g_loss.backward()
    of_generator.step()

    of_discriminator.zero_grad()
    real_loss = criterion(discriminator(real), valid)
    fake_loss = criterion(discriminator(made.detach()), fake)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    of_discriminator.step()
    if batch % 10 == 9:
        print(f"batch {batch + 1} d {d_loss.item():.4f} g {g_loss.item():.4f}")
