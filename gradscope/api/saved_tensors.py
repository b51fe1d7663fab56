"""``saved_tensors``: what the nodes of a graph saved."""

from __future__ import annotations

import torch
from torch.autograd.graph import GradientEdge

from gradscope.api.snapshot import snapshot
from gradscope.model import SavedTensors


def saved_tensors(*roots: torch.Tensor | GradientEdge) -> SavedTensors:
    """Return all saved tensors of the graph of one or more tensors, each with the name of its node.

    Each knows its name in the derivative formula, shape, dtype, bytes, state (saved, retained,
    freed, stale) and, where a watch saw it, the line that saved it.

    Raises GradscopeError for a root that has no graph.
    """
    return SavedTensors(
        (node.name, saved) for node in snapshot(*roots).nodes for saved in node.saved
    )
