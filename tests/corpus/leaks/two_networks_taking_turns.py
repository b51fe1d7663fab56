"""Two networks taking turns."""

import torch
from torch import nn
torch.manual_seed(0)

G, D = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(), nn.Linear(6, 1))
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
losses = {"d": [], "g": []}
for it in range(16):
    fake = G(torch.randn(5, 3))
    d = D(fake.detach()).mean() - D(torch.randn(5, 4)).mean()
    od.zero_grad(); d.backward(); od.step()
    g = -D(fake).mean()
    og.zero_grad(); g.backward(); og.step()
    losses["d"].append(d.item()); losses["g"].append(g.item())
