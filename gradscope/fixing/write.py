"""Writes changed sources: all files or none, each whole, with its mode, encoding and line ends."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from gradscope.errors import GradscopeError
from gradscope.fixing.patch import Change


def write(changes: Sequence[Change]) -> None:
    """Write the changes; raise GradscopeError if a file differs from what they were made for."""
    for change in changes:
        if _content(change.file) != change.before.data:
            raise GradscopeError(
                f"{change.file} was changed while the fix was tried out: "
                "nothing was written, try again"
            )
    written: list[Change] = []
    waiting: list[tuple[Change, str, str]] = []
    try:
        for change in changes:
            file = os.path.realpath(change.file)
            waiting.append((change, file, _beside(file, change.after.data)))
        while waiting:
            change, file, temporary = waiting[0]
            os.replace(temporary, file)
            written.append(waiting.pop(0)[0])
    except BaseException as error:
        for _, _, temporary in waiting:
            with suppress(OSError):
                os.unlink(temporary)
        for done in written:
            file = os.path.realpath(done.file)
            with suppress(OSError):
                os.replace(_beside(file, done.before.data), file)
        if not isinstance(error, OSError):
            raise
        raise GradscopeError(
            f"cannot write {change.file}: {error.strerror}; nothing was changed: make the file and"
            " its folder writable, or make the change that the diff shows yourself"
        ) from None


def _content(file: str) -> bytes | None:
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except OSError:
        return None


def _beside(file: str, content: bytes) -> str:
    """Write a new file that can take the place of an old one in one step; return its path."""
    if not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(file), prefix=".gradscope-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(file, temporary)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary
