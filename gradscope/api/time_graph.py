"""Measures the share of a training step's time that goes into building its graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from gradscope.api.watch import current
from gradscope.collect.walk import Walker, root_node
from gradscope.errors import GradscopeError
from gradscope.model.graph import Printed
from gradscope.program.tensors import leaves_of

# At least, however short the duration: the median then leaves out the slow first round.
_LEAST_ROUNDS = 5
_MOST_NODES = 20_000  # that are walked for the leaves; each takes stack when it is destroyed


@dataclass(frozen=True, slots=True)
class Timing(Printed):
    """Median seconds of a forward pass with and without recording of its graph, and of backward."""

    forward: float
    forward_without_graph: float
    backward: float
    rounds: int

    @property
    def building(self) -> float:
        """Seconds that building the graph takes: the forward pass with it less the one without."""
        return max(0.0, self.forward - self.forward_without_graph)

    @property
    def share(self) -> float:
        """What part of forward and backward goes into building the graph, from 0 to 1."""
        return self.building / (self.forward + self.backward)

    def __str__(self) -> str:
        rows = [
            ("forward with the graph", self.forward, ""),
            ("forward without (no_grad)", self.forward_without_graph, ""),
            ("backward", self.backward, ""),
            ("building the graph", self.building, f"  {self.share:.1%} of forward + backward"),
        ]
        return "\n".join(f"{name:<26}{1000 * value:8.3f} ms{note}" for name, value, note in rows)


def time_graph(forward: Callable[[], torch.Tensor], *, duration: float = 1.0) -> Timing:
    """Time ``forward``, which returns a loss, with and without its graph, and the backward pass.

    The three take turns for about ``duration`` seconds, so that they meet the same machine. No
    ``.grad`` is touched; but ``forward`` runs many times, with all its effects: it draws random
    numbers, and moves the statistics of a batch norm.

    Raises GradscopeError inside a watch, whose hooks would be timed too, and where ``forward``
    returns no scalar with a graph.

    Example::

        print(gradscope.time_graph(lambda: loss_function(model(x), y)))
    """
    if current() is not None:
        raise GradscopeError(
            "time_graph() was called inside a watch, which would be timed too: call it outside"
        )
    leaves = _leaves(forward())
    rounds: list[tuple[float, float, float]] = []
    ends = time.perf_counter() + duration
    while len(rounds) < _LEAST_ROUNDS or time.perf_counter() < ends:
        with torch.no_grad():
            forward()  # so that both of the next two come after a forward pass without a graph
            plain, _ = _timed(forward)
        recorded, loss = _timed(forward)
        backward, _ = _timed(
            partial(torch.autograd.grad, loss, leaves, allow_unused=True), loss.device
        )
        del loss
        rounds.append((recorded, plain, backward))
    recorded, plain, backward = (median(column) for column in zip(*rounds, strict=True))
    return Timing(recorded, plain, backward, len(rounds))


def _leaves(loss: Any) -> list[torch.Tensor]:
    """The tensors for which a backward pass of the loss computes gradients."""
    node = root_node(loss) if isinstance(loss, torch.Tensor) else None
    if node is None or loss.numel() != 1:
        raise GradscopeError(
            "the function returned no scalar with a graph: have it return the loss"
        )
    return leaves_of(Walker(_MOST_NODES).walk([node]))


def _timed(work: Callable[[], Any], device: torch.device | None = None) -> tuple[float, Any]:
    """Seconds until ``work`` is done, on an accelerator too, and what it returned."""
    _wait(device)
    begun = time.perf_counter()
    result = work()
    _wait(result.device if isinstance(result, torch.Tensor) else device)
    return time.perf_counter() - begun, result


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)
