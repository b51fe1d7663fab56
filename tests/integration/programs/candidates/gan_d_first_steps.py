"""A discriminator that is trained first."""
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
    D.zero_grad()
    pred_real = D(real)
    pred_fake = D(fake)
    loss_real = bce(pred_real, one)
    loss_fake = bce(pred_fake, zero)
    loss = loss_real + loss_fake
    loss.backward()
    opt_d.step()
    G.zero_grad()
    out = D(fake)
    err_g = bce(out, one)
    err_g.backward()
    opt_g.step()
