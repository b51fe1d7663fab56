"""Spectral normalisation."""

import torch
from torch import nn
torch.manual_seed(0)

from torch.nn.utils.parametrizations import spectral_norm
critic = nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.LeakyReLU(0.2, inplace=True), nn.Linear(4, 1))
optimizer = torch.optim.Adam(critic.parameters())
for _ in range(3):
    loss = critic(torch.randn(3, 4)).mean() - critic(torch.randn(3, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
