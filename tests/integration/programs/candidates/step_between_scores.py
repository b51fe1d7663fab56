"""Scores that a step has made stale."""
# fix: recompute

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
D = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), 1e-2), torch.optim.Adam(D.parameters(), 1e-2)
bce = nn.BCEWithLogitsLoss()
one, zero = torch.ones(8, 1), torch.zeros(8, 1)
for i in range(3):
    fake = G(torch.randn(8, 4))
    real_score = D(torch.randn(8, 4))
    fake_score = D(fake)
    d_loss = bce(real_score, one) + bce(fake_score, zero)
    g_loss = bce(fake_score, one)
    opt_d.zero_grad()
    d_loss.backward(retain_graph=True)
    opt_d.step()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
