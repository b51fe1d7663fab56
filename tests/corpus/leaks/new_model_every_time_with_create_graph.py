"""New model every time with create graph."""

import gc
import torch
from torch import nn
torch.manual_seed(0)

gc.disable()
for trial in range(10):
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    loss = net(torch.randn(8, 3)).pow(2).mean()
    loss.backward(create_graph=True)  # warning: GS304 [other]; held_by: GS304
