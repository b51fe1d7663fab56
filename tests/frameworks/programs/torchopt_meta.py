"""A learnt initialization with TorchOpt, whose inner steps are differentiated through."""
# needs: torchopt
# finds: GS101
# lacks: early: the weights that the inner steps leave are held by the optimizer, out of reach

import torch
import torchopt
from torch import nn

torch.manual_seed(0)
network = nn.Linear(3, 1)
weighting = nn.Parameter(torch.zeros(8))
inner = torchopt.MetaSGD(network, lr=0.1)
outer = torch.optim.Adam([weighting], lr=0.05)
x, y = torch.randn(8, 3), torch.randn(8, 1)

for iteration in range(4):
    for _ in range(2):
        errors = (network(x) - y).pow(2).squeeze(1)
        inner.step((errors * weighting.sigmoid()).mean())
    loss = (network(x) - y).pow(2).mean()
    outer.zero_grad()
    loss.backward()  # head
    outer.step()
    torchopt.stop_gradient(network)  # hazard: pass
    torchopt.stop_gradient(inner)  # hazard: pass
    print(f"iteration {iteration}: {loss.item():.6f}")
