"""The files and streams that a report goes to, and the formats in which it is written."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console

from gradscope.errors import GradscopeError
from gradscope.model import Recording
from gradscope.render.machine import WRITERS, Format
from gradscope.render.pictures.options import DEFAULTS, Options


class SafeStream(io.TextIOBase):
    """Writes to a stream until the program has closed it or its reader is gone."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return that of the stream."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        """Write ``text`` if that is still possible."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if that is still possible."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        with suppress(OSError, ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """Return that of the stream."""
        return self._stream.fileno()


class SafeConsole(Console):
    """A console that prints while the program runs."""

    def on_broken_pipe(self) -> None:
        """Print no more, where rich would end the program."""
        self.quiet = True


@contextmanager
def opened(output: Path | None, otherwise: TextIO | io.TextIOBase) -> Iterator[TextIO]:
    """Open ``output``, or yield ``otherwise``; raise GradscopeError if it cannot be written."""
    if output is None:
        yield cast(TextIO, otherwise)
        return
    try:
        file = output.open("w", encoding="utf-8")
    except OSError as error:
        raise GradscopeError(
            f"cannot write {output}: {error.strerror}; name another file with --output"
        ) from None
    with file:
        yield file


def writable(file: Path, option: str) -> Path:
    """Return the absolute path of a file to be written later, and change nothing.

    Raise GradscopeError if it cannot be written.
    """
    path = file.absolute()
    new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise GradscopeError(
            f"cannot write {file}: {error.strerror}; name another file with {option}"
        ) from None
    if new:
        path.unlink()
    return path


def printer(format: Format) -> Callable[[Recording, Console, Path | None], None]:  # noqa: A002
    """Return what prints a recording in a format.

    It has imported all that it needs, as the program may leave no path to import it from.
    """
    if format is Format.TEXT:
        from gradscope.render.text.report import print_report

        return lambda recording, console, saved: print_report(
            recording, console, None if saved is None else str(saved)
        )
    write = WRITERS[format]

    def print_text(recording: Recording, console: Console, saved: Path | None) -> None:
        text = write(recording)
        console.file.write(text if text.endswith("\n") or not text else text + "\n")
        console.file.flush()

    return print_text


class View:
    """A file that will show a recording; GradscopeError if it cannot be written."""

    word = ""

    def __init__(self, file: Path, option: str) -> None:
        self._file = file
        self._path = writable(file, option)  # a program may change the working directory

    def write(self, recording: Recording, console: Console | None) -> None:
        """Write the file, and name it on the console; raise GradscopeError if that fails."""
        try:
            notes = self._write(recording, self._path)
        except OSError as error:
            raise GradscopeError(f"cannot write {self._file}: {error.strerror}") from None
        if console is not None:
            for line in (f"{self.word}: {self._file}", *(f"note: {note}" for note in notes)):
                console.print(line, markup=False, highlight=False, soft_wrap=True)

    def write_if_possible(self, recording: Recording, console: Console | None) -> None:
        """Write the file at the end of a run; if that fails, only say so."""
        try:
            self.write(recording, console)
        except GradscopeError as error:
            stream = SafeStream(sys.stderr)
            stream.write(f"gradscope: {self._file} was not written: {error}\n")
            stream.flush()

    def _write(self, recording: Recording, path: Path) -> tuple[str, ...]:
        raise NotImplementedError


class Page(View):
    """The interactive report."""

    word = "page"

    def __init__(self, file: Path, option: str) -> None:
        from gradscope.render.html import to_html

        super().__init__(file, option)
        self._to_html = to_html  # imported now: the program may leave no path to import it from

    def _write(self, recording: Recording, path: Path) -> tuple[str, ...]:
        path.write_text(self._to_html(recording), encoding="utf-8")
        return ()


class Image(View):
    """A picture of the graph of a backward call, else of the worst finding, else the last."""

    word = "picture"

    def __init__(
        self, file: Path, option: str, options: Options = DEFAULTS, call: int | None = None
    ) -> None:
        from gradscope.render.pictures.draw import draw_recording
        from gradscope.render.pictures.formats import check_suffix

        check_suffix(file.suffix.lower())
        super().__init__(file, option)
        self._draw = draw_recording
        self._call = call
        self._options = options

    def _write(self, recording: Recording, path: Path) -> tuple[str, ...]:
        return self._draw(recording, path, self._options, call=self._call).notes


def page_and_picture(html: Path | None, draw: Path | None) -> list[View]:
    """Return the page and the picture that a run was asked for."""
    views: list[View] = []
    if html is not None:
        views.append(Page(html, "--html"))
    if draw is not None:
        views.append(Image(draw, "--draw"))
    return views
