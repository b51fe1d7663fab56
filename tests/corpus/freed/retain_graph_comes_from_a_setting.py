"""Retain_graph comes from a setting."""

import torch
from torch import nn
torch.manual_seed(0)

keep = False
enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
z = enc(torch.randn(2, 4))  # created: GS102 GS101; held_by: GS102
head(z).mean().backward(retain_graph=keep)  # warning: GS102 [retain_graph]; freed_by: GS102 GS101
loss = z.pow(2).mean()  # next_read: GS102
loss.backward()  # error: GS101 [retain_graph]; failing_node: GS102
