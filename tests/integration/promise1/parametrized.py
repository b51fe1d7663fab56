"""Parametrizations, weight_norm, spectral_norm, their caches, pruning."""

import torch
from _show import show, small
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

torch.manual_seed(0)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).t()


layer = nn.Linear(4, 4)
parametrize.register_parametrization(layer, "weight", Symmetric())
with parametrize.cached():
    (layer(layer(small(2, 4)))).sum().backward()
show("symmetric", layer.parametrizations.weight.original.grad)
for wrap in (
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    parametrizations.orthogonal,
):
    wrapped = wrap(nn.Linear(4, 4))
    for _ in range(2):
        wrapped(small(2, 4)).square().sum().backward()
    show(wrap.__name__, *(p.grad for p in wrapped.parameters()))
old = nn.utils.spectral_norm(nn.Linear(4, 4))
for _ in range(2):
    old(small(2, 4)).sum().backward()
show("old", *(p.grad for p in old.parameters()), *old.buffers())
pruned = prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
pruned(small(2, 4)).sum().backward()
show("pruned", *(p.grad for p in pruned.parameters()))
