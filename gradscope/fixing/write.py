"""Writes changed sources: each file whole or not at all, with its mode, encoding and line ends."""

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
    for change in changes:
        try:
            _replace(os.path.realpath(change.file), change.after.data)
        except OSError as error:
            raise GradscopeError(
                f"cannot write {change.file}: {error.strerror}; it is unchanged"
            ) from None


def _content(file: str) -> bytes | None:
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except OSError:
        return None


def _replace(file: str, content: bytes) -> None:
    """Put a new file in the place of an old one, in one step."""
    if not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(file), prefix=".gradscope-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(file, temporary)
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
