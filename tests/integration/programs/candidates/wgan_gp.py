"""A gradient penalty on fakes with their graph."""
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
    eps = torch.rand(8, 1)
    mix = eps * real + (1 - eps) * fake
    score = D(mix)
    (grad,) = torch.autograd.grad(score.sum(), mix, create_graph=True)
    gp = ((grad.norm(2, dim=1) - 1) ** 2).mean()
    d_loss = D(fake).mean() - D(real).mean() + 10 * gp
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = -D(fake).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
