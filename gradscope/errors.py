"""The exceptions that gradscope raises itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gradscope.units import escaped


class GradscopeError(Exception):
    """Raised for wrong use or bad input: the text says what is wrong, where, and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(escaped(text))  # it names files and other things from outside


class FreedGraphError(RuntimeError):
    """Raised before the engine runs, when a backward call needs saved tensors that were freed."""


class StaleSavedTensorError(RuntimeError):
    """Raised before the engine runs, when a backward call needs a tensor modified in place."""


class StopRun(BaseException):
    """Ends the program after N backward calls; no ``except Exception`` stops it."""


@contextmanager
def attempting(note: Callable[[Exception], object]) -> Iterator[None]:
    """Do some work of ours whose failure is not the program's: it is only noted."""
    try:
        yield
    except Exception as failure:
        note(failure)


def meant(word: str, known: Iterable[str]) -> str:
    """Return a question for the end of a message on an unknown word; empty without a like one."""
    from difflib import get_close_matches  # which few errors need

    like = get_close_matches(word, list(known), 1)
    return f"; did you mean {like[0]!r}?" if like else ""
