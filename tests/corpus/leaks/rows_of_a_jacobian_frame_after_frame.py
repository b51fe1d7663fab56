"""The rows of a Hessian, each with its graph, in a list that is new for each frame."""

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def hessian(pos):
    pos = pos.clone().requires_grad_()
    forces = -torch.autograd.grad(net(pos).sum(), pos, create_graph=True)[0]
    rows = []
    for f in forces.flatten():
        row = torch.autograd.grad(  # advice: GS303 [other]
            f, pos, retain_graph=True, create_graph=True
        )
        rows.append(row[0].flatten())
    return {"forces": forces, "hessian": torch.stack(rows)}


for frame in range(4):
    result = hessian(torch.randn(8, 3))
    print(result["hessian"].diag().sum().item())
