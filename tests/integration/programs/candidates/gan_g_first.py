"""A generator that is trained first."""
# fix: detach

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
D = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), 1e-2), torch.optim.Adam(D.parameters(), 1e-2)
bce = nn.BCEWithLogitsLoss()
one, zero = torch.ones(8, 1), torch.zeros(8, 1)
for i in range(3):
    real = torch.randn(8, 4) + 2
    opt_g.zero_grad()
    gen = G(torch.randn(8, 4))
    g_loss = bce(D(gen), one)
    g_loss.backward()
    opt_g.step()
    opt_d.zero_grad()
    real_loss = bce(D(real), one)
    fake_loss = bce(D(gen), zero)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    opt_d.step()
