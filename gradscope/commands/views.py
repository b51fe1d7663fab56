"""Writes a recording as a page or a picture to a file that is known beforehand to be writable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gradscope.commands.outputs import SafeStream, writable
from gradscope.errors import GradscopeError
from gradscope.model import Recording

if TYPE_CHECKING:
    from gradscope.api.draw import DrawOptions


class View:
    """A file that will show a recording. Making one raises GradscopeError where the file cannot be written."""

    word = ""

    def __init__(self, file: Path, option: str) -> None:
        self._file = file
        self._path = writable(file, option)  # a program may change the working directory

    def write(self, recording: Recording, console: Console | None) -> None:
        """Write the file, and say so where there is a console."""
        try:
            notes = self._write(recording, self._path)
        except OSError as error:
            raise GradscopeError(f"cannot write {self._file}: {error.strerror}") from None
        if console is not None:
            for line in (f"{self.word}: {self._file}", *(f"note: {note}" for note in notes)):
                console.print(line, markup=False, highlight=False, soft_wrap=True)

    def write_if_possible(self, recording: Recording, console: Console | None) -> None:
        """The same at the end of a run, which a file that cannot be written does not make a failure."""
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
    """A picture of the graph of a backward call, that of the finding or the last where none is named."""

    word = "picture"

    def __init__(
        self, file: Path, option: str, call: int | None = None, options: DrawOptions | None = None
    ) -> None:
        from gradscope.api.draw import draw_recording
        from gradscope.render.pictures.image import check_suffix

        check_suffix(file.suffix.lower())
        super().__init__(file, option)
        self._draw = draw_recording
        self._call = call
        self._options: DrawOptions = options or {}

    def _write(self, recording: Recording, path: Path) -> tuple[str, ...]:
        return self._draw(recording, path, call=self._call, **self._options).notes


def page_and_picture(html: Path | None, draw: Path | None) -> list[View]:
    """The views that a run was asked for."""
    views: list[View] = []
    if html is not None:
        views.append(Page(html, "--html"))
    if draw is not None:
        views.append(Image(draw, "--draw"))
    return views
