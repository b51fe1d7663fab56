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
from rich.live import Live
from rich.text import Text

from gradscope.commands.outputs import console_on
from gradscope.commands.top import View
from gradscope.errors import GradscopeError
from gradscope.rules.settings import Settings

try:
    import pty
    import termios
except ImportError:  # on Windows, which has no /dev/tty either
    pass

_QUIET = 1.0
"""Seconds in which the program prints nothing, before the run is shown, or shown anew."""
_LINES = 16
_PIECE = 65_536  # bytes


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

    fit()
    signal.signal(signal.SIGWINCH, fit)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(program, number))
    file = Path(str(program)) if sys.platform == "linux" else save
    with open(terminal, "w") as drawn_on, _keys_as_they_come(terminal):
        below = _Below(console_on(drawn_on), file, settings)
        _pass_on(program, its_terminal, terminal, below)
        below.erase()
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


@contextmanager
def _keys_as_they_come(terminal: int) -> Iterator[None]:
    """Have the program's terminal make of each key what this one would, Ctrl-C above all."""
    before, now = termios.tcgetattr(terminal), termios.tcgetattr(terminal)
    now[0] &= ~(termios.ICRNL | termios.IXON)
    now[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
    termios.tcsetattr(terminal, termios.TCSADRAIN, now)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pass_on(program: int, its_terminal: int, terminal: int, below: _Below) -> None:
    """Pass on what is printed and typed, until the program ends."""
    printed = b"\n"
    while printed:
        ready, _, _ = select.select([its_terminal, terminal], [], [], _QUIET)
        if terminal in ready:
            os.write(its_terminal, os.read(terminal, _PIECE))
        if its_terminal in ready:
            try:
                printed = os.read(its_terminal, _PIECE)
            except OSError:  # so Linux tells the end
                printed = b""
            below.erase()
            rest = printed
            while rest:
                rest = rest[os.write(terminal, rest) :]
        elif not ready:
            if os.waitid(os.P_PID, program, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                printed = b""  # what it has started may have its terminal open
            elif printed.endswith(b"\n"):
                below.draw()


class _Below:
    """What is shown below the lines that the program has printed."""

    def __init__(self, console: Console, file: Path | None, settings: Settings) -> None:
        self._console, self._file, self._settings = console, file, settings
        self._view: View | None = None
        self._live: Live | None = None

    def draw(self) -> None:
        """Show the run as it is now; nothing where there is no recording, yet or any more."""
        with suppress(GradscopeError):
            if self._file is None:
                return
            self._view = self._view or View(self._file, self._settings)
            self._view.obey("")
            width, height = self._console.size
            lines = self._view.lines_for(width)[: min(_LINES, height - 1)]
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(Text("\n").join(lines), refresh=True)

    def erase(self) -> None:
        """Leave no trace of it."""
        if self._live is not None:
            self._live.stop()
            self._live = None
