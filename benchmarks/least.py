"""The least that reading backward graphs from Python costs: a walk before each backward call that
reads every saved tensor, with no bookkeeping at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
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


@contextmanager
def reading() -> Iterator[None]:
    """Read the graph of every backward call before the engine runs it."""

    def run(original: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        read(outputs)
        return original(outputs, *args, **kwargs)

    handle = wrap_engine(run)
    try:
        yield
    finally:
        handle.remove()
