"""Reads where in a graph a tensor stands, without the program's own code seeing it."""

from __future__ import annotations

import torch
from torch.autograd.graph import Node


def node_of(tensor: torch.Tensor) -> Node | None:
    """``tensor.grad_fn``; None too for a view that torch refuses to use any more, which is an error only when it is used."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.grad_fn
        except RuntimeError:
            return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``; False for a view that torch refuses to use any more, which was computed from its base."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.is_leaf
        except RuntimeError:
            return False


def requires_grad(tensor: torch.Tensor) -> bool:
    """``tensor.requires_grad``; True for a view that torch refuses to use any more."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.requires_grad
        except RuntimeError:
            return True
