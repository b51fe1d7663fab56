"""``check``: what the engine would raise if backward were called now."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import GradientEdge

from gradscope.api.snapshot import start_nodes
from gradscope.api.watch import current
from gradscope.collect.backward import Backward
from gradscope.collect.ledger import Ledger
from gradscope.model import Hazards
from gradscope.program.names import Names


def check(
    *roots: torch.Tensor | GradientEdge, inputs: Sequence[torch.Tensor | GradientEdge] | None = None
) -> Hazards:
    """Return what the engine would raise if backward were called on ``roots`` now; empty when it would run.

    ``inputs`` restricts the call as in ``backward(inputs=…)``. Nothing is run and nothing is changed. Without a watch it
    is not known which call freed a graph, nor which line built it.

    Raises GradscopeError for a root that has no graph.
    """
    start_nodes(roots)
    session = current()
    backward = session.backward if session is not None else _bystander()
    return Hazards(backward.foresee(roots, tuple(inputs or ())))


def _bystander() -> Backward:
    """A choke point that no call goes through, for looks outside a watch."""
    names = Names()
    return Backward(Ledger(names), names, None, lambda finding: None, hooked=False)
