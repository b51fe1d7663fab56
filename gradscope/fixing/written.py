"""Guards what writes edits: what cannot be written is no edit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.model import Edit

P = ParamSpec("P")
_UNWRITABLE = (
    *(CannotBeWrittenError, SyntaxError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, RecursionError, NotImplementedError, StopIteration, OSError),
)


def written(write: Callable[P, tuple[Edit, ...]]) -> Callable[P, tuple[Edit, ...]]:
    """Return the function with nothing for what cannot be written.

    It runs in the user's program, and a finding without an edit is one all the same.
    """

    @functools.wraps(write)
    def edits(*args: P.args, **kwargs: P.kwargs) -> tuple[Edit, ...]:
        try:
            return write(*args, **kwargs)
        except _UNWRITABLE:
            return ()
        except Exception as error:
            # Not what a signal's handler of the program may have raised meanwhile.
            if not type(error).__module__.startswith("libcst"):
                raise
            return ()

    return edits
