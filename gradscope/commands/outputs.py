"""Where a report goes: a file, or a stream of the program's, which must not suffer from it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console

from gradscope.errors import GradscopeError


class SafeStream(io.TextIOBase):
    """Writes to a stream that the program may have closed, or nobody may read any more: then it writes nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115 - lives as long as this

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As the stream's."""
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
        """Whether the stream is a terminal."""
        with suppress(OSError, ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """As the stream's."""
        return self._stream.fileno()


class SafeConsole(Console):
    """A console that may print in the midst of the program."""

    def on_broken_pipe(self) -> None:
        """Fall silent, where rich would end the program."""
        self.quiet = True


@contextmanager
def opened(output: Path | None, otherwise: TextIO | io.TextIOBase) -> Iterator[TextIO]:
    """The file ``output``, opened for writing at once, or else the stream ``otherwise``."""
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
    """The absolute path of a file that is to be written later; GradscopeError if it cannot be. Nothing is changed."""
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
