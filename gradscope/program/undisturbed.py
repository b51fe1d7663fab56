"""Keeps Python's collector, and a trace of ours, from running while something of ours does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OWN = __name__.partition(".")[0] + "."
_gettrace = sys.gettrace  # a watch hides its trace from programs that ask


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn the collector off meanwhile; leave it off if the program has turned it off."""
    collects = gc.isenabled()
    try:
        gc.disable()  # an interruption comes right after it
        yield
    finally:
        if collects:
            gc.enable()


class Untraced:
    """Turns the line watch's trace off in this thread meanwhile: it would see every call of ours.

    No generator: one that an interruption leaves behind would bring the trace back when it dies,
    long after the watch has ended.
    """

    _trace: Any = None

    def __enter__(self) -> None:
        trace = _gettrace()
        if str(getattr(trace, "__module__", "")).startswith(_OWN):
            sys.settrace(None)
            self._trace = trace

    def __exit__(self, *_: object) -> None:
        # A destructor that ran meanwhile may have ended the trace.
        if self._trace is not None and self._trace.__self__.is_on:
            sys.settrace(self._trace)
