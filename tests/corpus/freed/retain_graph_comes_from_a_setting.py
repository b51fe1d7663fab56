"""Retain_graph comes from a setting."""

import torch
from torch import nn
torch.manual_seed(0)

keep = False
enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
z = enc(torch.randn(2, 4))  # created: GS103 GS101
head(z).mean().backward(retain_graph=keep)  # freed_by: GS103 GS101
loss = z.pow(2).mean()
# ^ warning: GS103 [retain_graph]
loss.backward()  # error: GS101 [retain_graph]; next_read: GS103
