"""Both losses of a GAN before both calls."""
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
    fake = G(torch.randn(8, 4))
    g_loss = bce(D(fake), one)
    d_loss = bce(D(real), one) + bce(D(fake), zero)
    opt_g.zero_grad()
    g_loss.backward(retain_graph=False)
    opt_d.zero_grad()
    d_loss.backward()
    opt_g.step()
    opt_d.step()
