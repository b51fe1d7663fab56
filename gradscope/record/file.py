"""Creates the file of a recording; reads one, leaving out and counting what cannot be read."""

from __future__ import annotations

import os
import platform
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gradscope._version import __version__
from gradscope.errors import GradscopeError
from gradscope.model import (
    BackwardCall,
    Finding,
    Graph,
    Header,
    Outcome,
    Recording,
    Sample,
    Summary,
)
from gradscope.record.codec import FORMAT, loads, parse
from gradscope.record.log import TABLES, Found, Head, Store, head_of, new_file, read_log
from gradscope.units import counted, nbytes

T = TypeVar("T")

_MOST_TEXT = dict.fromkeys(TABLES, 2 << 20) | {"graphs": 20 << 20, "sources": 32 << 20}
"""Bytes that are read of the text of each table, unpacked; ten times as many in memory."""

_A_LIST = 16
"""A list counts as so many bytes more: an empty one takes 2 there, and 64 in memory."""

_MOST_RECORDS = dict.fromkeys(TABLES, 10_000) | {"findings": 500}
_MOST_OPEN = 3
NOTED = ("count", "last_number", "ended", "live_bytes")
"""What the note of a log has of a row, as it has changed since the row was written."""

_NAMES = {"graphs": "graph", "sources": "source file", "timeline": "part of the memory curve"}


class LogReader:
    """What the records of a log say; raises ValueError where it has no header."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._room = dict(_MOST_TEXT)
        self._left_out: Counter[str] = Counter()
        self._tables: dict[str, list[tuple[int, bytes]]] = {table: [] for table in _MOST_TEXT}
        for (table, key), payload in found.payloads.items():
            self._tables[table].append((key, payload))

    def recording(self) -> Recording:
        """Return all that can be read; the totals count the calls that the table shows."""
        header = self._first("header", partial(loads, Header))
        if header is None:
            raise ValueError("it has no header")
        rows = dict(self._all("calls", partial(loads, BackwardCall)))
        noted = self._found.note.partition(b"\n")[2] or b"[]"
        for number, *since in loads(tuple[tuple[float, ...], ...], noted):
            index, changed = int(number), dict[str, Any](zip(NOTED, since, strict=True))
            if index in rows and changed["count"] > rows[index].count:
                rows[index] = replace(rows[index], **changed)
        summary = self._first("summary", partial(loads, Summary)) or Summary()
        if rows:
            summary = replace(summary, backward_calls=sum(row.count for row in rows.values()))
        runs = partial(loads, tuple[Sample, ...])
        return Recording(
            header=header,
            outcome=self._first("outcome", partial(loads, Outcome)) or Outcome(),
            summary=summary,
            calls=tuple(sorted(rows.values(), key=lambda call: call.number)),
            graphs=dict(self._all("graphs", lambda text: _sound(loads(Graph, text)))),
            findings=tuple(found for _, found in self._all("findings", partial(loads, Finding))),
            timeline=tuple(point for _, run in self._all("timeline", runs) for point in run),
            sources=dict(source for _, source in self._all("sources", _source)),
        )

    def open_calls(self) -> Iterator[str]:
        """Yield a sentence for each call that had begun, and not ended, when this was written."""
        begun = loads(tuple[BackwardCall, ...], self._found.note.partition(b"\n")[0] or b"[]")
        for call in begun[:_MOST_OPEN]:
            what = f"backward call {call.number:,}"
            what += " (autograd.grad)" if call.kind == "grad" else ""
            what += f" at {call.site.place}" if call.site else ""
            yield f"{what} had begun and had not ended"
        if len(begun) > _MOST_OPEN:
            yield f"{counted(len(begun) - _MOST_OPEN, 'other call')} had begun and had not ended"

    def losses(self) -> Iterator[str]:
        """Yield a sentence for each kind of loss."""
        missing, lost = self._found.missing, nbytes(self._found.missing + self._found.damaged)
        if missing:
            yield f"the recording is cut off: {lost} at its end are missing, the rest is shown"
        elif self._found.damaged:
            yield f"the recording is damaged: {lost} of it cannot be read, the rest is shown"
        for table, count in (+self._left_out).items():
            what = counted(count, _NAMES.get(table, table.removesuffix("s")))
            yield f"{what} of the recording cannot be read, or are too large, and are left out"

    def _first(self, table: str, read: Callable[[bytes], T]) -> T | None:
        return next((value for _, value in self._all(table, read)), None)

    def _all(self, table: str, read: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
        """Yield the values of a table by their keys, without those that cannot be read."""
        records, most = self._tables[table], _MOST_RECORDS[table]
        self._left_out[table] += max(0, len(records) - most)
        for key, payload in records[:most]:
            try:
                value = read(self._text(table, payload))
            except (ValueError, zlib.error):
                self._left_out[table] += 1
                continue
            yield key, value

    def _text(self, table: str, payload: bytes) -> bytes:
        """Return the text of a record, unpacked if there is room for all of it."""
        room = self._room[table]
        if table in ("graphs", "sources"):
            unpacking = zlib.decompressobj()
            payload = unpacking.decompress(payload, room + 1)
            if not unpacking.eof and len(payload) <= room:
                raise ValueError("its end is missing")
        size = len(payload) + _A_LIST * (payload.count(b"[") + payload.count(b"{"))
        if size > room:
            raise ValueError("too large")
        self._room[table] -= size
        return payload


def _source(text: bytes) -> tuple[str, str]:
    pair = parse(text)
    if not isinstance(pair, list) or [type(part) for part in pair] != [str, str]:
        raise ValueError("expected a source file's name and text")
    return pair[0], pair[1]


def _sound(graph: Graph) -> Graph:
    """Return ``graph``; raise ValueError if it names a node that it does not have."""
    named = [n for edge in graph.edges for n in (edge.source, edge.target)]
    named += [root.node for root in graph.roots]
    if named and not 0 <= min(named) <= max(named) < len(graph.nodes):
        raise ValueError("a graph names a node that it does not have")
    return graph


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
        if page and head_of(page) is None:
            what = "exists and is not a gradscope recording: delete it or choose another file"
            raise _error(path, what)
        path.unlink()
    return path


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
        if path.exists() and not path.is_file():  # to open a pipe may wait for ever
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise _error(path, f"is {kind}: {_GIVE}")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        what = "no such file: record one with `gradscope run --save FILE SCRIPT`"
        raise _error(path, what) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _error(path, f"cannot be read: {reason}") from error


def load_from(file: int, path: Path | None = None) -> Recording:
    """Return the recording behind a file descriptor, whose position stays where it is."""
    try:
        page = os.pread(file, 100, 0)
        head = head_of(page)
        if head is None:
            raise _error(path, f"{'' if page else 'empty, '}not a gradscope recording: {_GIVE}")
        if head.format != FORMAT:
            theirs = head.version.rstrip(b"\0").decode("ascii", "replace") or "an older one"
            what = f"written by another gradscope ({theirs}) than this ({__version__})"
            raise _error(path, f"{what}: read it with that one, or record the run again")
        return _read(read_log(file), head, file)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        what = f"the recording is damaged or cut off ({error}): record the run again"
        raise _error(path, what) from error


def _read(found: Found, head: Head, file: int) -> Recording:
    """Return a recording with notes about what is not in it."""
    reading = LogReader(found)
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


def _error(path: Path | None, what: str) -> GradscopeError:
    return GradscopeError(f"{path or 'the recording'}: {what}")
