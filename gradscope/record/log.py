"""The file of a recording: one page about it, then an append-only log of checksummed records.

A later record of a table and key takes the place of an earlier one; an empty one deletes it. What
``os.pwrite`` took outlives the process without a commit, and nobody locks anything: a reader stops
at what is cut off, passes over what is damaged, and says how much that was. The page has a note,
which is written again in its place with every backward call.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from gradscope._version import __version__
from gradscope.record.codec import FORMAT

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"\x89gscope\n"
TABLES = (
    *("header", "outcome", "summary"),
    *("calls", "findings", "sources", "timeline", "graphs"),
)
"""The tables, those first that tell the most if the end of a file is missing."""

Key: TypeAlias = tuple[str, int]
"""A table and the key in it."""

PAGE = 4096
HEAD = struct.Struct("<8sIIIIQQ16s")
"""Magic, format, the process that writes and its file descriptor, how often the log was moved,
where it starts and where it stops, 0 while it grows, and the version of gradscope.
"""
NOTE = struct.Struct("<II")
_NOTE_AT = 64
FRAME = struct.Struct("<4sIIBI")
"""Mark, checksum of all that follows it here and of the payload, length of that, table, key."""
MARK = b"\xf5GS\n"
_CHECKED_FROM = 8

_SPARE = 1 << 20
"""Bytes that may be outdated in a log, with as many more as are not."""
_OUT_OF_THE_WAY = 900
"""Our file descriptors begin here: the program's have the numbers that they have without us, and a
program that closes all and opens others is not given one of gradscope's again.
"""

_MOST_READ = 64 << 20
_MOST_RECORDS = 500_000
_A_CHECK = 512
"""No recording is larger: a file that was made to do harm is read no further. To look for a record
where none is costs as much as to read some bytes.
"""


class Store:
    """A recording in a file, or in a nameless one that a forked process can read."""

    def __init__(self, file: int, path: Path | None) -> None:
        self.path = path
        self._file = file
        self._identity = _identity(file)
        self._places: dict[Key, tuple[int, int]] = {}
        self._start = self._end = PAGE
        self._moved = 0
        self._most = PAGE + _SPARE
        self._put(bytes(PAGE), 0)
        self._settle()

    def fileno(self) -> int:
        """Return the number of the file, which stays the same."""
        return self._file

    def write(self, batch: Mapping[Key, bytes]) -> None:
        """Write all of ``batch`` or, on an error, nothing."""
        if _identity(self._file) != self._identity:  # closed by the program, and its own by now
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self._is_settled:
            self._settle()
        frames, places, at = [], {}, self._end
        for key, payload in batch.items():
            frames.append(_frame(key, payload))
            places[key] = (at, len(frames[-1]))
            at += len(frames[-1])
        try:
            self._put(b"".join(frames), self._end)
            self._places.update(places)
            self._end = at
        except BaseException:  # a full disk, or a signal's handler that raises
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        if self._end > self._most:
            self.compact()

    def note(self, text: bytes) -> None:
        """Write a text in the place of the one before, if it is short enough."""
        if len(text) <= PAGE - _NOTE_AT - NOTE.size:
            self._put(NOTE.pack(len(text), zlib.crc32(text)) + text, _NOTE_AT)

    def compact(self) -> None:
        """Leave out the records that others have replaced.

        They are copied to the end first, and to the front from there: a process that is killed
        in the midst of it leaves one of the two whole.
        """
        order = sorted(self._places, key=lambda key: (TABLES.index(key[0]), key[1]))
        places = (self._places[key] for key in order)
        frames = (os.pread(self._file, length, at) for at, length in places)
        live = b"".join(frame for frame in frames if len(frame) > FRAME.size)
        for start in (self._end, PAGE):
            try:
                self._put(live, start)
            except OSError:  # no room for two
                os.ftruncate(self._file, self._end)
                break
            moved = {
                key: (start + at, FRAME.size + len(payload)) for key, at, payload in _records(live)
            }
            # All or nothing, as a signal's handler may raise: it runs with a call.
            end = start + len(live)
            self._places, self._start, self._end, self._is_settled = moved, start, end, False
            self._settle()
        self._most = self._end + len(live) + _SPARE

    def _settle(self) -> None:
        """Have readers begin where the log begins, and cut off what lies behind it."""
        self._turn(self._end)
        os.ftruncate(self._file, self._end)
        self._turn(0)

    def finish(self) -> None:
        """Make the file as small as it can be, the end with the least in it, and note the end."""
        self.compact()
        self._turn(self._end)

    def close(self) -> None:
        """Let go of the file, unless the program has closed it, with all that it found open."""
        file, self._file = self._file, -1
        with suppress(OSError):
            if _identity(file) == self._identity:
                os.close(file)

    def _turn(self, stop: int) -> None:
        self._is_settled = False
        self._moved += 1
        numbers = FORMAT, os.getpid(), self._file, self._moved, self._start, stop
        self._put(HEAD.pack(MAGIC, *numbers, __version__.encode()), 0)
        self._is_settled = not stop

    def _put(self, data: bytes, at: int) -> None:
        if os.pwrite(self._file, data, at) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def new_file(path: Path | None) -> int:
    """Return a new file: of that name, or a nameless one in memory where there is such a thing."""
    if path is not None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    elif hasattr(os, "memfd_create"):
        file = os.memfd_create("gradscope")
    else:
        with tempfile.TemporaryFile() as nameless:
            file = os.dup(nameless.fileno())
    if fcntl is None:
        return file
    try:
        away = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    except OSError:  # so many files are not allowed
        return file
    os.close(file)
    return away


@dataclass(frozen=True, slots=True)
class Head:
    """What the first page says; ``stop`` is 0 of a log that was not finished."""

    format: int
    process: int
    file: int
    moved: int
    start: int
    stop: int
    version: bytes


@dataclass(slots=True)
class Found:
    """The records of a log, and how many bytes of it could not be read, or are not there."""

    payloads: dict[Key, bytes]
    note: bytes = b""
    head: Head | None = None
    damaged: int = 0
    missing: int = 0


def head_of(page: bytes) -> Head | None:
    """Return what the beginning of a file says; None if that is no recording."""
    if len(page) < HEAD.size or not page.startswith(MAGIC):
        return None
    return Head(*HEAD.unpack_from(page)[1:])


def read_log(file: int) -> Found:
    """Return the records of a log, which may be written and moved meanwhile."""
    for _ in range(5):
        found = _read(file)
        now = head_of(os.pread(file, HEAD.size, 0))
        if now is None or found.head is None or now.moved == found.head.moved:
            break
    return found


def _read(file: int) -> Found:
    page = os.pread(file, PAGE, 0)
    head = head_of(page)
    found = Found({}, _note(page), head)
    size = os.fstat(file).st_size
    start = head.start if head is not None and PAGE <= head.start <= size else PAGE
    stop = head.stop if head is not None and head.stop > start else size
    found.missing = max(0, stop - size)
    found.damaged = min(stop, size) - start
    log = os.pread(file, min(found.damaged, _MOST_READ), start)
    for key, _, payload in islice(_records(log), _MOST_RECORDS):
        found.payloads[key] = payload
        found.damaged -= FRAME.size + len(payload)
    found.payloads = dict(sorted((key, text) for key, text in found.payloads.items() if text))
    return found


def _note(page: bytes) -> bytes:
    if len(page) < PAGE:
        return b""
    length, checksum = NOTE.unpack_from(page, _NOTE_AT)
    text = page[_NOTE_AT + NOTE.size :][:length]
    return text if len(text) == length and zlib.crc32(text) == checksum else b""


def _frame(key: Key, payload: bytes) -> bytes:
    unchecked = FRAME.pack(MARK, 0, len(payload), TABLES.index(key[0]), key[1])
    checked = unchecked[_CHECKED_FROM:] + payload
    return MARK + struct.pack("<I", zlib.crc32(checked)) + checked


def _records(log: bytes) -> Iterator[tuple[Key, int, bytes]]:
    """Yield the key, the place and the payload of each whole record; pass over what is damaged."""
    at, checks = 0, _MOST_READ  # bytes of what may be records, after damage
    while (at := log.find(MARK, at)) >= 0 and at + FRAME.size <= len(log) and checks > 0:
        _, checksum, length, table, key = FRAME.unpack_from(log, at)
        end = at + FRAME.size + length
        if table < len(TABLES) and end <= len(log) and length <= checks:
            if zlib.crc32(memoryview(log)[at + _CHECKED_FROM : end]) == checksum:
                yield (TABLES[table], key), at, log[at + FRAME.size : end]
                at = end
                continue
            checks -= length
        at, checks = at + 1, checks - _A_CHECK


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino
