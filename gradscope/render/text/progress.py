"""One line on stderr that shows how far a long run is, and never mixes with the script's output."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO, TextIO

from gradscope.units import counted, nbytes, seconds

_FIRST = 2.0
_EVERY = 0.25
_ERASE = "\r\x1b[K"


class ProgressLine:
    """Draws how far a run is, at most four times a second and not in the first two seconds.

    It draws only where stderr is a terminal and stdout is not: with both on one screen the column
    in which the script left the cursor is unknown, and the line would end up amid the script's
    text. After drawing, the cursor is back in the first column, for the script.
    """

    __slots__ = ("_drawn", "_next", "_stream")

    def __init__(self, stream: TextIO | None = None, stdout: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._drawn = False
        wanted = _is_terminal(self._stream) and not _is_terminal(
            sys.stdout if stdout is None else stdout
        )
        self._next = _FIRST if wanted and os.environ.get("TERM") != "dumb" else float("inf")

    def update(self, calls: int, live_bytes: int, elapsed: float) -> None:
        """Draw how far the run is, if it is time; else this costs one comparison."""
        if elapsed < self._next:
            return
        self._next = elapsed + _EVERY
        held = f"{nbytes(live_bytes)} held by graphs"
        made = counted(calls, "backward call")
        self._write(f"{_ERASE}gradscope: {made}, {held}, {seconds(elapsed)}\r")
        self._drawn = True

    def show(self, text: str) -> None:
        """Draw what is done after the program's end; an erase takes it away."""
        if _is_terminal(self._stream) and os.environ.get("TERM") != "dumb":
            begin_line(self._stream)
            self._write(f"{_ERASE}{text}\r")
            self._drawn = True

    def erase(self) -> None:
        """Take the line away, before a finding and at the end; an update brings it back."""
        if self._drawn:
            self._write(_ERASE)
            self._drawn = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal has gone, or the script closed stderr
            self._next = float("inf")


def begin_line(stream: IO[str]) -> None:
    """Have a terminal's cursor at the begin of a line, below what the program may have left there.

    As shells do before a prompt: as many spaces as a line has end at the end of an empty line, and
    go on to the next after a progress bar, as of tqdm. Nobody can be asked for the column.
    """
    if _is_terminal(stream) and os.environ.get("TERM") != "dumb":
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns
            stream.write(f"{'':{columns}}\r" if columns else "")


def _is_terminal(stream: IO[str] | None) -> bool:
    """Return whether a stream is a terminal; one that is closed or missing is none."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
