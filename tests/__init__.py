"""All tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_CALL = compile("waiting.pop()()", __file__, "exec")


def known(value: T | None) -> T:
    """Return a value that is there."""
    assert value is not None
    return value


def as_a_module(call: Callable[[], object]) -> None:
    """Call a function as a module of the user's would: gradscope reads on to the end of that, and not through pytest,
    which takes ten times as long.
    """
    waiting = [call]
    del call  # no variable here holds what it is given
    exec(_CALL, {"waiting": waiting, "__tracebackhide__": True})
