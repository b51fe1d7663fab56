"""Keeps Python's collector, and a trace of ours, from running while something of ours does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OWN = __name__.partition(".")[0] + "."
_gettrace = sys.gettrace  # a watch hides its trace from programs that ask


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn the collector off meanwhile; leave it off if the program has turned it off."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def untraced() -> Iterator[None]:
    """Turn the line watch's trace off in this thread meanwhile: it would see every call of ours."""
    trace = _gettrace()
    if not str(getattr(trace, "__module__", "")).startswith(_OWN):
        yield
        return
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
