# trains: d_loss, g_loss
# trains: generator: cut 19 detach; trains g_optimizer
# trains: discriminator: trains d_optimizer; zeroed_unused d_optimizer
# trains: probe: never_used; no_way
"""A GAN whose gradients are zeroed in place, and clipped; a probe of it is in no optimizer."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
probe = nn.Linear(2, 1)
g_optimizer = torch.optim.Adam(generator.parameters())
d_optimizer = torch.optim.Adam(discriminator.parameters())
for step in range(8):
    fake = generator(torch.randn(32, 4))
    d_optimizer.zero_grad(set_to_none=False)
    given = fake.detach()
    d_loss = F.softplus(discriminator(given)).mean() + probe(given).square().mean()
    d_loss.backward()
    nn.utils.clip_grad_norm_(discriminator.parameters(), 1.0)
    d_optimizer.step()
    g_optimizer.zero_grad(set_to_none=False)
    g_loss = F.softplus(-discriminator(fake)).mean()
    g_loss.backward()
    nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
    g_optimizer.step()
