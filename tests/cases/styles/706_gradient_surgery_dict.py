# expect: {"error": "double_backward", "raise_line": 43, "culprit_line": 39, "free_line": 43, "leak": false, "loop_line": 39, "fix": "retain_graph", "fix_also": ["recompute"], "patch": {"43": "        name: flattened(torch.autograd.grad(loss, shared, retain_graph=True))"}, "group": "autograd.grad in a comprehension"}
# Gradient surgery (PCGrad): the gradients of every task are taken over one shared trunk in a dict comprehension.
# Mended: Gradient surgery (PCGrad): every task's loss in the dict comes from its own pass through the trunk.

import torch
import torch.nn.functional as F
from torch import nn


def flattened(grads):
    return torch.cat([g.reshape(-1) for g in grads])


def surgery(vectors):
    projected = {}
    for name, vector in vectors.items():
        for other, against in vectors.items():
            dot = vector @ against
            if other != name and dot < 0:
                vector = vector - dot / against.square().sum().clamp_min(1e-12) * against
        projected[name] = vector
    return sum(projected.values())


def assign(parameters, vector):
    for p, piece in zip(parameters, vector.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p).clone()


torch.manual_seed(13)
trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 12), nn.Tanh())
heads = nn.ModuleDict({"depth": nn.Linear(12, 1), "normal": nn.Linear(12, 3), "edge": nn.Linear(12, 1)})
shared = list(trunk.parameters())
opt = torch.optim.SGD(shared, lr=0.05)

for step in range(5):
    x = torch.randn(16, 8)
    truth = {name: torch.randn(16, head.out_features) for name, head in heads.items()}
    features = trunk(x)  # -
    losses = {name: F.mse_loss(head(features), truth[name]) for name, head in heads.items()}  # -
    # + losses = {name: F.mse_loss(head(trunk(x)), truth[name]) for name, head in heads.items()}
    vectors = {
        name: flattened(torch.autograd.grad(loss, shared))
        for name, loss in losses.items()
    }
    assign(shared, surgery(vectors))
    opt.step()
    print(step, {name: round(loss.item(), 3) for name, loss in losses.items()})
