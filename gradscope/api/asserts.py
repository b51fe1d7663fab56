"""Asserts facts about graphs, for unittest, scripts and notebooks as for pytest."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch.autograd.graph import GradientEdge

from gradscope.api.graphs import snapshot, start_nodes
from gradscope.api.watch import room, watch
from gradscope.api.why import why
from gradscope.collect.walk import Walker
from gradscope.errors import GradscopeError
from gradscope.formatting import counted, listed, nbytes
from gradscope.model import Severity
from gradscope.program.tensors import leaves_of, parameters_of
from gradscope.torch_private import DisableTorchFunction

P = ParamSpec("P")
R = TypeVar("R")

_MOST_NAMES = 10  # parameters that an assertion names: a test's output is to be seen at a glance
_MOST_LINES = 8  # of what ``why`` says of the first: the cut and what to do come before more
__unittest = True  # so unittest shows the line that asserts, and none of ours


def _asserts(assertion: Callable[P, R]) -> Callable[P, R]:
    """Have a failure shown at the line that asserts, whatever of ours has raised it."""

    @wraps(assertion)
    def asserted(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True  # by pytest
        try:
            return assertion(*args, **kwargs)
        except (AssertionError, GradscopeError) as failure:
            raise failure.with_traceback(None) from None

    return asserted


@_asserts
def assert_freed(*roots: torch.Tensor | GradientEdge) -> None:
    """Raise AssertionError unless the graph of these tensors has let go of all that it saved, so
    that backward through it would fail.

    Raises GradscopeError for a root that has no graph.
    """
    graph = snapshot(*roots)
    keeps = [node for node in graph.nodes if any(not saved.state.is_gone for saved in node.saved)]
    if keeps:
        raise AssertionError(
            f"{counted(len(keeps), 'node')} of the graph ({listed(n.name for n in keeps)}) hold"
            f" {nbytes(graph.saved_bytes)} of saved tensors: no backward call has gone through,"
            " or it was made with retain_graph=True"
        )


class assert_no_growth(watch):  # noqa: N801 - used as a verb
    """Watch a block of code, and raise AssertionError if it keeps the graphs of iterations alive.

    The message is that of the findings, which name the holder (GS301, GS302, GS304). Detecting
    growth needs about 8 backward calls at one line.
    """

    def __init__(self) -> None:
        super().__init__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        __tracebackhide__ = True
        found = self._entered[-1][0].findings
        super().__exit__(kind, error, traceback)
        grown = [
            str(one)
            for one in found
            if one.code.startswith("GS3") and one.severity is not Severity.ADVICE and one.counts
        ]
        if grown and error is None:
            raise AssertionError("\n".join(grown))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:  # type: ignore[override]
        """Return the function with each of its calls watched."""

        @wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True  # contextlib would show a line of its own
            with type(self)():
                return function(*args, **kwargs)

        return watched


@_asserts
def assert_trains(
    loss: torch.Tensor, model: torch.nn.Module, by: torch.optim.Optimizer | None = None
) -> list[str]:
    """Raise AssertionError unless a backward call on ``loss`` gives a gradient to all parameters of
    ``model`` that require grad; ``by``: and the optimizer has them. Return their names.

    Nothing is run. A parameter that the loss depends on only through a ``no_grad`` block, a
    ``detach()`` or a number gets none. Raises GradscopeError for a loss without a graph.
    """
    nodes = start_nodes((loss,))
    with DisableTorchFunction():
        reached = set(map(id, leaves_of(Walker(room()).walk(nodes))))
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    stepped = set(map(id, parameters_of(by)))
    left = [] if by is None else [n for n in wanted if id(wanted[n]) not in stepped]
    problems = {
        "no gradient comes from this loss to": [n for n in wanted if id(wanted[n]) not in reached],
        f"{type(by).__name__} does not have": left,
    }
    told = [
        f"{what}: {listed(map('`{}`'.format, names), _MOST_NAMES)}"
        for what, names in problems.items()
        if names
    ]
    if told:
        missing = [p for key, p in wanted.items() if id(p) not in reached]
        way = str(why(missing[0], loss)).splitlines()[:_MOST_LINES] if missing else []
        raise AssertionError("\n".join(["; ".join(told), *way]))
    return list(wanted)
