"""`run --live` shows a run in the program's own terminal, as long as the program prints nothing."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from gradscope.commands.outputs import console_on
from gradscope.commands.top import View
from gradscope.errors import GradscopeError
from gradscope.render.text.terminal import print_lines
from gradscope.rules.settings import Settings

try:
    import pty
    import termios
    import tty
except ImportError:  # on Windows, which has no /dev/tty either
    pass

_QUIET = 1.0
"""Seconds in which the program prints nothing, before the run is shown, or shown anew."""
_LINES = 16
_PIECE = 65_536  # bytes
_SIGNALS = "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"
_BEGIN, _END = "\x1b7\x1b[m\x1b[J\x1b[?7l", "\x1b[?7h\x1b8"
"""Save the cursor with its colours, clear what is below, wrap no line; and back."""


def live(run: Callable[[], int], save: Path | None, settings: Settings) -> int:
    """Call ``run`` in a process with a terminal of its own; pass on what that prints and is sent.

    Below what it has printed the run is shown, and goes again before more is printed. That is only
    after a whole line: a progress bar stays as it is. Return the exit status, or die of the same
    signal. Raise GradscopeError where there is no terminal.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        another = "in another one, `gradscope top` shows the run of `run --save`"
        raise GradscopeError(f"--live needs a terminal of Unix; {another}") from None
    streams = [os.dup(number) for number in range(3)]
    program, its_terminal = pty.fork()
    if program == 0:
        for number, stream in enumerate(streams):
            if not os.isatty(stream):  # a file or a pipe stays what it was
                os.dup2(stream, number)
        os.closerange(terminal, streams[-1] + 1)
        return run()

    def fit(*_: object) -> None:
        termios.tcsetwinsize(its_terminal, termios.tcgetwinsize(terminal))

    def hand_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(program, number)

    fit()
    signal.signal(signal.SIGWINCH, fit)
    for name in _SIGNALS:
        signal.signal(getattr(signal, name), hand_on)
    file = Path(str(program)) if sys.platform == "linux" else save
    with open(terminal, "w") as drawn_on, _keys_as_they_come(terminal, its_terminal):
        below = _Below(console_on(drawn_on), file, settings)
        status = _pass_on(program, its_terminal, terminal, below)
    if status < 0:
        with suppress(OSError):  # SIGKILL is never handled
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


@contextmanager
def _keys_as_they_come(terminal: int, its_terminal: int) -> Iterator[None]:
    """Have the program's terminal make of each key what this one would, Ctrl-C above all."""
    before = termios.tcgetattr(terminal)
    termios.tcsetattr(its_terminal, termios.TCSANOW, before)
    tty.setraw(terminal, termios.TCSADRAIN)
    try:
        yield
    finally:
        with suppress(termios.error):  # it has gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pass_on(program: int, its_terminal: int, terminal: int, below: _Below) -> int:
    """Pass on what is printed and typed, until the program ends; return its exit status."""
    printed, typed = b"\n", b""
    os.set_blocking(its_terminal, False)  # it may read nothing of what is typed
    with suppress(OSError):  # so Linux tells the end
        while printed:
            sources, goals = [its_terminal, *([] if typed else [terminal])], [its_terminal]
            ready, free, _ = select.select(sources, goals if typed else [], [], _QUIET)
            if free:
                typed = typed[os.write(its_terminal, typed) :]
            if terminal in ready and not (typed := os.read(terminal, _PIECE)):
                os.close(its_terminal)  # as this one has gone
            if its_terminal in ready:
                below.erase()
                rest = printed = os.read(its_terminal, _PIECE)
                while rest:
                    rest = rest[os.write(terminal, rest) :]
            elif not (ready or free):
                ended, status = os.waitpid(program, os.WNOHANG)
                if ended:  # what it has started may have its terminal open
                    below.erase()
                    return os.waitstatus_to_exitcode(status)
                if printed.endswith(b"\n"):
                    below.draw()
    return os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])


class _Below:
    """What is shown below the lines that the program has printed."""

    def __init__(self, console: Console, file: Path | None, settings: Settings) -> None:
        self._console, self._file, self._settings = console, file, settings
        self._view: View | None = None
        self._is_shown = False

    def draw(self) -> None:
        """Show the run as it is now; nothing where there is no recording, yet or any more.

        The cursor stays where it was, so that it does not matter how a new size moves the lines.
        """
        with suppress(Exception):  # the program runs on, whatever fails here
            if self._file is None:
                return
            self._view = self._view or View(self._file, self._settings)
            self._view.obey("")
            height, width = termios.tcgetwinsize(self._console.file.fileno())
            with self._console.capture() as drawn:
                print_lines(self._console, self._view.lines_for(width)[: min(_LINES, height - 1)])
            text = drawn.get().replace("\n", "\r\n")
            height = text.count("\n")
            self._write("\r\n" * height + "\x1b[A" * height + _BEGIN + text + _END)
            self._is_shown = True

    def erase(self) -> None:
        """Leave no trace of it."""
        if self._is_shown:
            self._write(_BEGIN + _END)
            self._is_shown = False

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()
