"""gradscope: a lifecycle inspector and debugger for PyTorch's backward graphs.

The public names are loaded when they are first used, so that commands which need no torch do not import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradscope._version import __version__

if TYPE_CHECKING:
    from gradscope.comparing import compare as compare
    from gradscope.drawing import draw as draw
    from gradscope.drawing import to_dot as to_dot
    from gradscope.errors import FreedGraphError as FreedGraphError
    from gradscope.errors import GradscopeError as GradscopeError
    from gradscope.errors import StaleSavedTensorError as StaleSavedTensorError
    from gradscope.following import follow as follow
    from gradscope.holding import holders as holders
    from gradscope.inspection import check as check
    from gradscope.inspection import saved_tensors as saved_tensors
    from gradscope.inspection import snapshot as snapshot
    from gradscope.timing import time_graph as time_graph
    from gradscope.using import uses as uses
    from gradscope.watching import watch as watch

_WHERE = {
    "FreedGraphError": "gradscope.errors",
    "GradscopeError": "gradscope.errors",
    "StaleSavedTensorError": "gradscope.errors",
    "check": "gradscope.inspection",
    "compare": "gradscope.comparing",
    "draw": "gradscope.drawing",
    "follow": "gradscope.following",
    "holders": "gradscope.holding",
    "saved_tensors": "gradscope.inspection",
    "snapshot": "gradscope.inspection",
    "time_graph": "gradscope.timing",
    "to_dot": "gradscope.drawing",
    "uses": "gradscope.using",
    "watch": "gradscope.watching",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'gradscope' has no attribute {name!r}; it has {', '.join(sorted(_WHERE))}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
