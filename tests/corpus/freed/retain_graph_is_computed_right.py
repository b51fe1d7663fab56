"""Retain_graph is computed right."""

import torch
from torch import nn
torch.manual_seed(0)

scores = nn.Sequential(nn.Linear(4, 4), nn.Tanh())(torch.randn(4))
for cls in (1, 2, 3):
    picked = scores[cls] ** 2
    picked.backward(retain_graph=(cls != 3))
