"""Newton increments in one graph, for the one call in the end that runs through all of them."""

import torch
from torch import nn

torch.manual_seed(0)

stiffness = torch.tensor(1.5, requires_grad=True)
x, load, history = torch.ones(16), torch.zeros(16), []
x.requires_grad_()
for increment in range(6):
    load = load + 0.05
    for it in range(5):
        (stress,) = torch.autograd.grad((stiffness * x.pow(4)).sum(), x, create_graph=True)
        (tangent,) = torch.autograd.grad(stress.sum(), x, create_graph=True)
        x = x - (stress - load) / tangent
    history.append(x)
torch.stack(history).pow(2).mean().backward()
print(stiffness.grad.item())
