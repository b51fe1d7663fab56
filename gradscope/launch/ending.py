"""Ends a program as the interpreter would: its uncaught exception, its threads, its exit status."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IMPORT_SYSTEM = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_LAST = ("last_exc", "last_type", "last_value", "last_traceback")
INTERRUPTED = 130
"""What a shell shows for a program that died of Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What follows from the end of the main thread; ``by_exit`` is True for a SystemExit."""

    exit_status: int = 0
    exception: str | None = None
    by_exit: bool = False
    interrupted: bool = False


def conclude(error: BaseException | None) -> Ending:
    """Print what the interpreter prints of an uncaught exception; return what follows."""
    if error is None:
        return Ending()
    if isinstance(error, SystemExit):
        return Ending(_exit_status(error), by_exit=True)
    remove_own_frames(error)
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    exit_of_hook = _call_excepthook(error)
    if exit_of_hook is not None:
        return Ending(_exit_status(exit_of_hook), describe(error), by_exit=True)
    interrupted = isinstance(error, KeyboardInterrupt)
    return Ending(INTERRUPTED if interrupted else 1, describe(error), interrupted=interrupted)


def describe(error: BaseException) -> str:
    """Return the last line of a traceback, ``RuntimeError: message``, without notes."""
    lines = traceback.format_exception_only(error)
    return next((line for line in lines if not line.startswith(" ")), lines[-1]).rstrip("\n")


def remove_own_frames(error: BaseException) -> None:
    """Remove gradscope's frames from the tracebacks of an exception and of its causes."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_own_frames(one.__traceback__)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _without_own_frames(entry: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(PACKAGE):
            kept.append(entry)
        else:  # below ours, Python leaves frames of its import system, which it hides elsewhere
            while kept and kept[-1].tb_frame.f_code.co_filename in _IMPORT_SYSTEM:
                kept.pop()
        entry = entry.tb_next
    for one, following in zip(kept, [*kept, None][1:], strict=True):
        # Each assignment costs a walk to the end: deep tracebacks stay as they are.
        if one.tb_next is not following:
            one.tb_next = following
    return kept[0] if kept else None


def _call_excepthook(error: BaseException) -> SystemExit | None:
    """Hand ``error`` to ``sys.excepthook``; return the SystemExit that the hook raised, if any."""
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _write_stderr("sys.excepthook is missing\n")
        hook = sys.__excepthook__
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return leaving
    except BaseException as failure:  # as the interpreter does, which continues
        remove_own_frames(failure)
        _write_stderr("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        _write_stderr("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return None


def _exit_status(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        fits = -(2**63) <= code < 2**63
        return (code if fits else -1) & (0xFF if os.name == "posix" else 0xFFFFFFFF)
    _write_stderr(f"{code}\n")
    return 1


def _write_stderr(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
    else:
        with suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))


def wait_for_threads() -> None:
    """Wait for the threads that are not daemons, as the interpreter does first when it exits."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:  # at Ctrl-C here, the interpreter prints it and continues
        remove_own_frames(error)
        if sys.version_info < (3, 13):
            _write_stderr(f"Exception ignored in: {threading!r}\n")
        elif sys.version_info >= (3, 14):
            _write_stderr("Exception ignored on threading shutdown:\n")
        _write_stderr("Traceback (most recent call last):\n")
        _write_stderr("".join(traceback.format_tb(error.__traceback__)))
        _write_stderr(f"{type(error).__qualname__}: {error}\n")


def die_of_interrupt() -> NoReturn:
    """Run the exit handlers and die of SIGINT, as for an uncaught KeyboardInterrupt.

    Nothing is printed for that, and the exit handlers find ``sys`` as the program left it.
    """
    restored = {name: getattr(sys, name) for name in ("excepthook", *_LAST) if hasattr(sys, name)}

    def say_nothing(*_: object) -> None:
        for name, value in restored.items():
            setattr(sys, name, value)

    sys.excepthook = say_nothing
    raise KeyboardInterrupt
