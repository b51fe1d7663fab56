"""Retain_graph is computed."""

import torch
from torch import nn
torch.manual_seed(0)

scores = nn.Sequential(nn.Linear(4, 4), nn.Tanh())(torch.randn(4))  # created: GS102 GS101; held_by: GS102
for cls in (1, 3):
    picked = scores[cls] ** 2  # next_read: GS102
    picked.backward(retain_graph=(cls == 3))
    # ^ warning: GS102 [retain_graph]; error: GS101 [retain_graph]; freed_by: GS102 GS101; failing_node: GS102
