"""Defines the exceptions that gradscope raises, and how changes outside it are undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gradscope.formatting import escaped

_MISSING: Any = object()


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


class Handle(ExitStack):
    """Undoes changes, once: last first, each one even if another's undoing failed."""

    def __init__(self, *undo: Callable[[], object]) -> None:
        super().__init__()
        for each in undo:
            self.callback(each)

    def add(self, *handles: Handle) -> Handle:
        """Take charge of more changes."""
        for handle in handles:
            self.callback(handle.close)
        return self


def replace(owner: Any, name: str, new: Any) -> Handle:
    """Bind ``owner.name`` to ``new``.

    Undoing restores the stored original. Where another tool has put an object on top meanwhile,
    that stays: to take it away would break them, and ours beneath it does nothing once its watch
    has ended.
    """
    original = vars(owner).get(name, _MISSING)
    setattr(owner, name, new)

    def undo() -> None:
        if vars(owner).get(name, _MISSING) is not new:
            return
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return Handle(undo)
