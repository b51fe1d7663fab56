"""``check``: what the engine would raise if backward were called now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch.autograd.graph import GradientEdge

from gradscope.api.snapshot import start_nodes
from gradscope.api.watch import current
from gradscope.collect.looker import Looker
from gradscope.collect.state import State
from gradscope.detect import hazards
from gradscope.model import Hazards
from gradscope.program.undisturbed import Uncollected


def check(
    *roots: torch.Tensor | GradientEdge, inputs: Sequence[torch.Tensor | GradientEdge] | None = None
) -> Hazards:
    """Return what the engine would raise if backward were called on ``roots`` now.

    It is empty when backward would run. ``inputs`` restricts the call as in ``backward(inputs=…)``.
    Nothing is run and nothing is changed. Without a watch it is not known which call freed a graph,
    nor which line built it.

    Raises GradscopeError for a root that has no graph.
    """
    start_nodes(roots)  # says what is wrong with them
    session = current()
    state = State() if session is None else session.state
    looker = Looker(state) if session is None else session.looker
    with Uncollected():  # torch makes objects that live with the graph
        return Hazards(hazards.foresee(state, looker, roots, tuple(inputs or ()), sys._getframe(1)))
