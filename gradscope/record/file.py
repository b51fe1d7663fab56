"""Creates the file of a recording, and reads one, whatever became of its writer or of the file."""

from __future__ import annotations

import os
import platform
import stat
import zlib
from dataclasses import replace
from pathlib import Path

from gradscope.errors import GradscopeError
from gradscope.model import Header, Recording
from gradscope.record.log import FORMAT, Found, Head, Store, head_of, new_file, read_log
from gradscope.record.reading import Reading

_GIVE = "give a file that `gradscope run --save FILE` wrote"


def create(path: Path | None) -> Store:
    """Make an empty recording at ``path``, in the place of an older one; without one, in a nameless
    file that a forked process can read by its ``fileno()`` when this one is killed.

    Raise GradscopeError where it cannot be written.
    """
    try:
        return Store(new_file(None if path is None else _make_way(path.resolve())), path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        what = f"the recording cannot be written there ({reason}): choose another file"
        raise _error(path, what) from error


def _make_way(path: Path) -> Path:
    """Delete a recording or an empty file at ``path``, and nothing else."""
    if path.exists():
        if not path.is_file():
            raise _error(path, "not a regular file: choose another file for the recording")
        with path.open("rb") as file:
            page = file.read(100)
        if page and head_of(page) is None and not _is_old(page):
            what = "exists and is not a gradscope recording: delete it or choose another file"
            raise _error(path, what)
        path.unlink()
    return path


def _is_old(page: bytes) -> bool:
    """Return whether a file begins as the SQLite databases that recordings were."""
    return page.startswith(b"SQLite format 3\0") and page[68:72] == b"GSCP"


def pack(text: str) -> bytes:
    """Compress a text, as large ones are stored."""
    return zlib.compress(text.encode(), 1)


def load(path: str | Path) -> Recording:
    """Return the recording in a file, of a run that is over, was killed, or still runs.

    Notes in it say what of the file is missing or damaged, and which calls had not ended. Raise
    GradscopeError for a file that is missing, of another format, or without a header.
    """
    path = Path(path)
    file = _opened(path)
    try:
        return load_from(file, path)
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe too
    except FileNotFoundError as error:
        what = "no such file: record one with `gradscope run --save FILE SCRIPT`"
        raise _error(path, what) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _error(path, f"cannot be read: {reason}") from error
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise _error(path, f"is {kind}: {_GIVE}")


def load_from(file: int, path: Path | None = None) -> Recording:
    """Return the recording behind a file descriptor, whose position stays where it is."""
    try:
        page = os.pread(file, 100, 0)
        head = head_of(page)
        if head is None:
            raise _error(path, _what_else(page))
        if head.format > FORMAT:
            what = f"written by a newer gradscope (format {head.format}); this one reads {FORMAT}"
            raise _error(path, f"{what}: upgrade gradscope")
        return _read(read_log(file), head, file)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        what = f"the recording is damaged or cut off ({error}): record the run again"
        raise _error(path, what) from error


def _read(found: Found, head: Head, file: int) -> Recording:
    """Return a recording with notes about what is not in it."""
    reading = Reading(found)
    recording = reading.recording()
    notes: list[str] = []
    outcome, running = recording.outcome, ""
    if not outcome.finished:
        notes += reading.open_calls()
        running = _still_running(head, recording.header, file)
        outcome = replace(outcome, running=running)
    if not running:
        notes += reading.losses()
    summary = replace(recording.summary, notes=(*recording.summary.notes, *notes))
    return replace(recording, outcome=outcome, summary=summary)


def _still_running(head: Head, header: Header, file: int) -> str:
    """Return a line that says that the run has not ended, or may not have; empty if it was stopped.

    A process that still writes has the file open under the number that it has noted, which no
    other program that has its process number now has.
    """
    if header.host and header.host != platform.node():
        who = f"process {header.pid} on {header.host}"
        return f"the run had not finished when this was read: {who} still runs, or was stopped"
    try:
        theirs, ours = os.stat(f"/proc/{head.process}/fd/{head.file}"), os.fstat(file)
        alive = (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)
    except FileNotFoundError:
        alive = not os.path.isdir("/proc/self/fd") and is_alive(head.process)
    except OSError:  # of another user
        alive = is_alive(head.process)
    return f"the run has not ended yet (process {header.pid})" if alive else ""


def is_alive(process: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def _what_else(page: bytes) -> str:
    if _is_old(page):
        return "written by an older gradscope: record the run again"
    if not page:
        return f"empty, not a gradscope recording: {_GIVE}"
    return f"not a gradscope recording: {_GIVE}"


def _error(path: Path | None, what: str) -> GradscopeError:
    return GradscopeError(f"{path or 'the recording'}: {what}")
