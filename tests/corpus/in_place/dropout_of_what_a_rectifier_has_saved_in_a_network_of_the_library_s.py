"""Dropout of what a rectifier has saved, in a network of the library's."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Linear(3, 1))
out = net(torch.randn(4, 3)).mean()  # warning: GS202 [clone]; created: GS202 GS201
# ^ modified_by: GS202 GS201
out.backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
