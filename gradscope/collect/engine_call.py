"""What a backward call asks of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

INPUTS = 4
"""In ``EngineCall.kind``: the call runs only what leads to some inputs."""


class EngineCall(NamedTuple):
    """What a backward call asks of the engine. ``accumulates`` is False for ``autograd.grad``."""

    outputs: Sequence[Any]
    keep_graph: bool
    create_graph: bool
    inputs: Sequence[Any]
    accumulates: bool

    @classmethod
    def of(
        cls,
        t_outputs: Sequence[Any],
        grad_tensors: Sequence[Any] = (),
        keep_graph: bool = False,
        create_graph: bool = False,
        inputs: Sequence[Any] = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = True,
    ) -> EngineCall:
        """Read the arguments of ``_engine_run_backward`` (torch/autograd/graph.py)."""
        return cls(
            t_outputs, bool(keep_graph), bool(create_graph), inputs or (), bool(accumulate_grad)
        )

    @property
    def kind(self) -> int:
        """A number that is another for each way of asking."""
        kept = self.keep_graph + 2 * self.create_graph
        return kept + INPUTS * bool(self.inputs) + 8 * self.accumulates

    @property
    def word(self) -> str:
        """The word for it in the record of the call."""
        return "backward" if self.accumulates else "grad"
