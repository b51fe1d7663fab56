"""gradscope: a lifecycle inspector and debugger for PyTorch's backward graphs.

The public names are loaded when one is first used, so that commands that need no torch do not
import it, and at once where torch is there: what then runs under a profiler imports nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradscope.record import __version__

if TYPE_CHECKING:
    from gradscope.api.asserts import assert_freed as assert_freed
    from gradscope.api.asserts import assert_no_growth as assert_no_growth
    from gradscope.api.asserts import assert_trains as assert_trains
    from gradscope.api.graphs import check as check
    from gradscope.api.graphs import compare as compare
    from gradscope.api.graphs import draw as draw
    from gradscope.api.graphs import follow as follow
    from gradscope.api.graphs import holders as holders
    from gradscope.api.graphs import saved_tensors as saved_tensors
    from gradscope.api.graphs import snapshot as snapshot
    from gradscope.api.graphs import to_dot as to_dot
    from gradscope.api.graphs import uses as uses
    from gradscope.api.time_graph import time_graph as time_graph
    from gradscope.api.watch import watch as watch
    from gradscope.api.why import why as why
    from gradscope.errors import FreedGraphError as FreedGraphError
    from gradscope.errors import GradscopeError as GradscopeError
    from gradscope.errors import StaleSavedTensorError as StaleSavedTensorError

_ERRORS = {"FreedGraphError", "GradscopeError", "StaleSavedTensorError"}
_OF_GRAPHS = (
    *("check", "compare", "draw", "follow", "holders", "saved_tensors"),
    *("snapshot", "to_dot", "uses"),
)
_ASSERTS = ("assert_freed", "assert_no_growth", "assert_trains")
_WHERE = {
    **dict.fromkeys(sorted(_ERRORS), "gradscope.errors"),
    **dict.fromkeys(_OF_GRAPHS, "gradscope.api.graphs"),
    **dict.fromkeys(_ASSERTS, "gradscope.api.asserts"),
    **{name: f"gradscope.api.{name}" for name in ("time_graph", "watch", "why")},
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        there = ", ".join(sorted(_WHERE))
        raise AttributeError(f"module 'gradscope' has no attribute {name!r}; it has {there}")
    _load(_ERRORS if name in _ERRORS else _WHERE)
    return globals()[name]


def _load(names: Iterable[str]) -> None:
    for name in names:
        globals()[name] = getattr(import_module(_WHERE[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """Add ``%gradscope`` and ``%%gradscope`` to a notebook: ``%load_ext gradscope`` calls this."""
    from gradscope.launch.notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take them out again: ``%unload_ext gradscope`` calls this."""
    from gradscope.launch.notebook import unload

    unload(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


# Pytest imports this package in every project of an environment with gradscope in it.
if "torch" in sys.modules and "pytest" not in sys.modules:
    with suppress(Exception):  # where it fails, the first use says why
        _load(_WHERE)
