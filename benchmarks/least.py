"""The least that reading backward graphs from Python costs: a walk before each backward call that
reads every saved tensor, or that only counts the call, with no bookkeeping at all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd.function import BackwardCFunction

from gradscope.hooks import wrap_engine

SAVED, RAW = "_saved_", "_raw_saved_"


@functools.cache
def saved_by(kind: type) -> tuple[str, ...]:
    """Return the attributes that hold the saved tensors of nodes of a kind."""
    if issubclass(kind, BackwardCFunction):
        return ()
    return tuple(SAVED + a.removeprefix(RAW) for a in dir(kind) if a.startswith(RAW))


def read(outputs: Any) -> None:
    """Visit each node, and read what it saved: torch checks that it is there and unmodified."""
    seen = set()
    stack = [output.grad_fn for output in outputs]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in saved_by(type(node)):
            getattr(node, name)
        stack += [target for target, _ in node.next_functions]


def count(outputs: Any) -> None:
    """Count the calls by their roots, and read nothing."""
    key = type(outputs[0].grad_fn), len(outputs)
    _counts[key] = _counts.get(key, 0) + 1


_counts: dict[tuple[type, int], int] = {}


@contextmanager
def before_calls(look: Callable[[Any], None]) -> Iterator[None]:
    """Look at the outputs of every backward call before the engine runs it."""

    def run(original: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        look(outputs)
        return original(outputs, *args, **kwargs)

    with wrap_engine(run):
        yield


reading = functools.partial(before_calls, read)
counting = functools.partial(before_calls, count)
