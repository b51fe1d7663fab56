"""Newton increments in one graph: the material is differentiated, the solution never."""

import torch
from torch import nn

torch.manual_seed(0)

stiffness = torch.tensor(1.5)
x, load, history = torch.ones(16).requires_grad_(), torch.zeros(16), []
for increment in range(6):
    load = load + 0.05
    for it in range(5):
        (stress,) = torch.autograd.grad((stiffness * x.pow(4)).sum(), x, create_graph=True)
        (tangent,) = torch.autograd.grad(  # warning: GS301 [detach]
            stress.sum(), x, create_graph=True
        )
        x = x - (stress - load) / tangent  # held_by: GS301
    history.append(x)
