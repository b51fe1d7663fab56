"""Errors of an evaluation that are kept until its end, before anything is trained."""

import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=4e-3)

def survey(tracks):
    errors = []
    for _ in range(tracks):
        x = torch.rand(64, 3)
        errors.append(F.l1_loss(net(x), x[:, :1]))  # advice: GS302 [item]; held_by: GS302
    return torch.stack(errors).mean().item()

survey(25)
for step in range(12):
    x = torch.rand(64, 3)
    opt.zero_grad()
    F.mse_loss(net(x), x[:, :1]).backward()
    opt.step()
survey(25)
