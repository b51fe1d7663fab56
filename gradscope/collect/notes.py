"""What the report says of the watch itself: limits that it met, and parts that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import TypeVar

from gradscope.program.sites import USER, owner_of

T = TypeVar("T")


class Notes:
    """Sentences for the report, each kept once."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._texts))

    def add(self, text: str) -> None:
        """Keep a sentence."""
        self._texts[text] = None

    def failed(self, what: str, failure: BaseException) -> None:
        """Keep that a part of gradscope failed; the program goes on without it.

        A full stack is left out: the program is about to meet that itself.
        """
        if isinstance(failure, RecursionError):
            return
        error = f"{type(failure).__name__}: {failure}"
        self.add(f"{what} ({error}); please report this")

    def attempt(self, what: str, work: Callable[[], T], otherwise: T) -> T:
        """Do some work of ours inside the program; where it fails, keep a note and go on."""
        try:
            return work()
        except Exception as failure:
            if raised_by_program(failure):
                raise
            self.failed(what, failure)
            return otherwise


def raised_by_program(error: BaseException) -> bool:
    """Return whether an exception that passes through our code is the program's own.

    That can only be one that a signal's handler raised while our code ran: it must go on its way.
    """
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(owner_of(frame.f_code) == USER for frame in frames)
