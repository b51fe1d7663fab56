"""Writes reports to files and streams, in each format."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO, cast

from rich.console import Console
from rich.text import Text

from gradscope.errors import GradscopeError
from gradscope.formatting import escaped
from gradscope.model import Recording
from gradscope.render.machine import WRITERS
from gradscope.render.pictures import DEFAULTS, Options
from gradscope.render.text import SafeConsole, begin_line, plain, print_lines, write_text
from gradscope.rules.settings import Format


class SafeStream(io.TextIOBase):
    """Writes to a stream until that fails: its reader is gone, its disk is full, it was closed.

    ``problem`` is the first error of the system's.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        self.problem: OSError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return that of the stream."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        """Write ``text`` if that is still possible."""
        self.attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush if that is still possible."""
        self.attempt(lambda: self._stream.flush())

    def attempt(self, work: Callable[[], object]) -> None:
        """Do some work on the stream, and note if that failed."""
        try:
            work()
        except OSError as error:
            self.problem = self.problem or error
        except ValueError:  # it was closed
            self.problem = self.problem or OSError(errno.EBADF, os.strerror(errno.EBADF))

    @property
    def is_lost(self) -> bool:
        """Return whether somebody who would read it has not got what was written."""
        return self.problem is not None and not isinstance(self.problem, BrokenPipeError)

    @property
    def is_diverted(self) -> bool:
        """Return whether it leads elsewhere than at first."""
        return False

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        with suppress(OSError, ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """Return that of the stream."""
        return self._stream.fileno()


class ErrorStream(SafeStream):
    """Stderr as the user gave it, whatever the program makes of it.

    While the program leads it elsewhere, as a test does that captures it, nothing is written, and
    at the end only where the program has led it on purpose: to a file that its children get too.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._number = None
        with suppress(OSError, ValueError):
            self._number = self._stream.fileno()
        self._file = self._current()
        self._is_at_end = False

    def at_end(self) -> None:
        """Say that the program has ended: what is written now is the report."""
        self._is_at_end = True

    @property
    def is_diverted(self) -> bool:
        """Return whether it leads elsewhere than at first."""
        return self._current() != self._file

    def _current(self) -> tuple[int, int] | None:
        with suppress(OSError):
            if self._number is not None:
                found = os.fstat(self._number)
                return found.st_dev, found.st_ino
        return None

    def attempt(self, work: Callable[[], object]) -> None:
        """Do some work on the stream, and note if that failed."""
        if self._number is not None and self.is_diverted:
            if not self._is_at_end:
                return
            if self._current() is None or not os.get_inheritable(self._number):
                self.problem = self.problem or OSError(errno.EBADF, os.strerror(errno.EBADF))
                return
        if self._number is not None and _is_closed(self._stream):
            self._stream = open(  # noqa: SIM115
                self._number, "w", encoding="utf-8", errors="backslashreplace", closefd=False
            )
        super().attempt(work)


def _is_closed(stream: TextIO) -> bool:
    try:
        return stream.closed
    except ValueError:  # it was detached
        return True


def tell(what: object, stream: SafeStream | None = None) -> None:
    """Write a line of gradscope's on stderr, if that is still possible."""
    stream = stream or SafeStream(sys.stderr)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(f"gradscope: {escaped(str(what), encoding)}\n")
    stream.flush()


def attempted(job: Callable[[], int]) -> int:
    """Do what a command line asks for; return the exit status, and say what is wrong with it."""
    stderr = SafeStream(sys.stderr)
    try:
        return job()
    except GradscopeError as error:
        begin_line(cast(TextIO, stderr))  # where a progress may stand
        for line in getattr(error, "__notes__", ()):  # what a program has printed
            stderr.write(escaped(line, stderr.encoding or "utf-8", keep="\t") + "\n")
        tell(error, stderr)
    except OSError as error:
        if error.filename is not None:
            tell(f"cannot use {error.filename}: {error.strerror}")
        else:  # the output: what is still buffered would fail once more when Python ends
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            tell(f"cannot write the output: {error.strerror}")
    return 2


# Cells that a report is laid out for at least: a table needs them for its names and figures. A
# narrower terminal wraps the lines by itself.
_NARROWEST = 40


def console_on(stream: TextIO | SafeStream) -> Console:
    """Return a console that writes to a stream."""
    # Without force_jupyter=False rich would display in a notebook.
    console = SafeConsole(file=cast(TextIO, stream), highlight=False, force_jupyter=False)
    if console.width < _NARROWEST:
        console.width = _NARROWEST
    return console


def print_line(console: Console, line: str) -> None:
    """Print a line as it is, however long."""
    print_lines(console, [Text(plain(line, console))])


@contextmanager
def opened(output: Path | None, otherwise: TextIO | io.TextIOBase) -> Iterator[TextIO]:
    """Open ``output``, or yield ``otherwise``; raise GradscopeError if it cannot be written.

    What cannot be written later is said at the end, as a program may run meanwhile.
    """
    if output is None:
        yield cast(TextIO, otherwise)
        return
    file = _opened(output, output, "w", "--output")
    stream = SafeStream(file)
    try:
        yield cast(TextIO, stream)
        stream.flush()
    finally:
        stream.attempt(file.close)
    if stream.problem is not None:
        raise unwritable(output, stream.problem, "--output")


def unwritable(file: Path, error: OSError, option: str) -> GradscopeError:
    """Return the error for a file that cannot be written."""
    return GradscopeError(f"cannot write {file}: {error.strerror}; name another file with {option}")


def writable(file: Path, option: str) -> Path:
    """Return the absolute path of a file to be written later, and change nothing.

    Raise GradscopeError if it cannot be written.
    """
    path = file.absolute()
    new = not path.exists()
    _opened(file, path, "a", option).close()
    if new:
        path.unlink()
    return path


def _opened(file: Path, path: Path, mode: str, option: str) -> TextIO:
    try:
        return cast(TextIO, path.open(mode, encoding="utf-8"))
    except OSError as error:
        raise unwritable(file, error, option) from None


def printer(
    format: Format,  # noqa: A002
    verbose: bool = False,
) -> Callable[[Recording, Console, str | None], None]:
    """Return what prints a recording in a format.

    It has imported all that it needs, as the program may leave no path to import it from.
    """
    if format is Format.TEXT:
        from gradscope.render.text.report import print_report

        return partial(print_report, verbose=verbose)
    write = WRITERS[format]
    return lambda recording, console, saved: write_text(write(recording), console)


class View(NamedTuple):
    """A file that will show a recording; ``render`` writes it, and returns notes for the user."""

    word: str
    file: Path
    render: Callable[[Recording], Iterable[str]]

    def write(self, recording: Recording, console: Console | None) -> None:
        """Write the file, and name it on the console; raise GradscopeError if that fails."""
        try:
            notes = self.render(recording)
        except OSError as error:
            raise GradscopeError(f"cannot write {self.file}: {error.strerror}") from None
        if console is not None:
            for line in (f"{self.word}: {self.file}", *(f"note: {note}" for note in notes)):
                print_line(console, line)


# What these need is imported before the program runs, which may leave no path to import it from,
# and may change the working directory. Both raise GradscopeError if the file cannot be written.


def page(file: Path, option: str) -> View:
    """Return the interactive report as a view."""
    from gradscope.render.html import to_html

    path = writable(file, option)

    def render(recording: Recording) -> tuple[str, ...]:
        path.write_text(to_html(recording), encoding="utf-8")
        return ()

    return View("page", file, render)


def image(file: Path, option: str, options: Options = DEFAULTS, call: int | None = None) -> View:
    """Return a picture of the graph of a call, else of the worst finding or the last call."""
    from gradscope.render.pictures.draw import check_suffix, draw_recording

    check_suffix(file.suffix.lower())
    path = writable(file, option)
    return View(
        "picture", file, lambda recording: draw_recording(recording, path, options, call=call).notes
    )
