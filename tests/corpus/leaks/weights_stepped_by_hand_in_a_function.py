"""Weights in a list, stepped by hand in a function: its variables are gone in the end."""

import torch

torch.manual_seed(0)


def train():
    weights = [torch.randn(6, 6, requires_grad=True) for _ in range(2)]
    for i in range(40):
        out = torch.randn(10, 6)
        for w in weights:
            out = (out @ w).tanh()
        grads = torch.autograd.grad(out.mean(), weights, create_graph=True)  # warning: GS301 [detach]
        weights = [w - 0.1 * g for w, g in zip(weights, grads)]  # held_by: GS301
    return [w.detach() for w in weights]


train()
