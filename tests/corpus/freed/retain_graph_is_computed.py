"""Retain_graph is computed."""

import torch
from torch import nn
torch.manual_seed(0)

scores = nn.Sequential(nn.Linear(4, 4), nn.Tanh())(torch.randn(4))  # created: GS103 GS101
for cls in (1, 3):
    picked = scores[cls] ** 2
    # ^ warning: GS103 [retain_graph]
    picked.backward(retain_graph=(cls == 3))
    # ^ error: GS101 [retain_graph]; freed_by: GS103 GS101; next_read: GS103
