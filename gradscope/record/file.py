"""The file of a recording: one page about it, then an append-only log of checksummed records.

Each record is a value of the model as JSON text, a dataclass the list of its values, without their
names: a recording says of which ``FORMAT`` it is, and is read by a gradscope with the same one. A
later record of a table and key takes the place of an earlier one; an empty one deletes it.

What ``os.pwrite`` took outlives the process without a commit, and nobody locks anything: a reader
stops at what is cut off, passes over what is damaged, leaves out what does not fit the model, and
says how much that was. The page has a note of the calls that run, which is written again in its
place.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache, partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import gradscope.model as model
from gradscope.errors import GradscopeError
from gradscope.formatting import counted, nbytes
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
from gradscope.record import __version__

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

# values as text

T = TypeVar("T")
Convert = Callable[[Any], Any]

_KINDS = [kind for kind in vars(model).values() if isinstance(kind, type)]

_CLASSES = [kind for kind in _KINDS if is_dataclass(kind)]

LAYOUT = {kind.__name__: {field.name: field.type for field in fields(kind)} for kind in _CLASSES}
"""The fields of every dataclass of the model with their types, in the order of writing."""

_WORDS = {kind.__name__: [word.value for word in kind] for kind in _KINDS if issubclass(kind, Enum)}

FORMAT = zlib.crc32(f"5 {LAYOUT} {_WORDS}".encode())
"""What a file of another layout of the model has another one of; so has another layout of logs."""

_LARGEST = 1 << 63  # no number is larger, so that views can compute with them: 64 bits

# No site has more: views go through its lines, and a file made to do harm must not hold them up.
_MOST_LINES = 10_000

# Longer texts are cut to this; an argument of a program is never longer (Linux allows 128 KiB).
_MOST_CHARACTERS = 1 << 17

_VALUES = {name: attrgetter(*names) for name, names in LAYOUT.items()}


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, Sequence) else _VALUES[type(value).__name__](value)


def dumps(value: Any) -> str:
    """Return plain values and dataclasses of the model as JSON text in ASCII, which every encoding
    can write: the name of a file may have characters that UTF-8 has not.
    """
    return json.dumps(value, check_circular=False, separators=(",", ":"), default=_plain)


def parse(text: str | bytes) -> Any:
    """Return what JSON text holds; raise ValueError where it is no JSON."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def loads(kind: type[T], text: str | bytes) -> T:
    """Return the value of type ``kind`` that ``dumps`` wrote as ``text``; raise ValueError for what
    does not fit the model.
    """
    return _reader(kind)(parse(text))  # type: ignore[no-any-return,arg-type]


@cache
def _reader(kind: Any) -> Convert:
    """Return what reads values of the type ``kind``, and checks them."""
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (inner,) = (_reader(arg) for arg in args if arg is not type(None))
        return lambda plain: None if plain is None else inner(plain)
    if origin is dict:
        checked, value = _scalar_reader(dict), _reader(args[1])
        return lambda plain: {key: value(each) for key, each in checked(plain).items()}
    if origin in (tuple, Sequence):
        items, item = _scalar_reader(list), _reader(args[0])
        return lambda plain: tuple([item(part) for part in items(plain)])
    return kind if issubclass(kind, Enum) else _scalar_reader(kind)


def _dataclass_reader(kind: Any) -> Convert:
    hints = get_type_hints(kind)
    readers = [_reader(hints[field.name]) for field in fields(kind)]
    is_place = {"line", "end_line"} <= hints.keys()

    def read(plain: Any) -> Any:
        if type(plain) is not list or len(plain) != len(readers):
            raise ValueError(f"expected {kind.__name__}")
        made = kind(*[reader(item) for reader, item in zip(readers, plain, strict=True)])
        if is_place and made.end_line - made.line > _MOST_LINES:
            raise ValueError("a place of so many lines")
        return made

    return read


def _scalar_reader(kind: type) -> Convert:
    allowed = (float, int) if kind is float else (kind,)
    is_number = kind in (int, float)

    def read(plain: Any) -> Any:
        if type(plain) not in allowed:
            raise ValueError(f"expected {kind.__name__}, found {type(plain).__name__}")
        if is_number and not -_LARGEST <= plain <= _LARGEST:
            raise ValueError("a number is too large")
        return plain[:_MOST_CHARACTERS] if kind is str else plain

    return read


# the log

MAGIC = b"\x89gscope\n"
TABLES = (
    *("header", "outcome", "summary"),
    *("calls", "findings", "sources", "timeline", "graphs"),
)
"""The tables, those first that tell the most if the end of a file is missing."""

Key: TypeAlias = tuple[str, int]
"""A table and the key in it."""

PAGE = 4096  # bytes: the note here changes in place, within one page of memory and of a disk
HEAD = struct.Struct("<8sIIIIQQ16s")
"""Magic, format, the process that writes and its file descriptor, how often the log was moved,
where it starts and where it stops, 0 while it grows, and the version of gradscope.
"""
NOTE = struct.Struct("<II")
_NOTE_AT = 64  # behind ``HEAD``, which has 56 bytes
FRAME = struct.Struct("<4sIIBI")
"""Mark, checksum of all that follows it here and of the payload, length of that, table, key."""
MARK = b"\xf5GS\n"
_CHECKED_FROM = 8  # behind mark and checksum

# Outdated bytes that a log may have, in addition to as many as it has live ones: it is about
# twice as large as needed at most, and each byte is copied about once.
_SPARE = 1 << 20
_AS_IT_IS: int = getattr(os, "O_BINARY", 0)
# Our file descriptors begin here: the program's have the numbers that they have without us, and a
# program that closes all and opens others is not given one of gradscope's again. Linux allows
# 1,024 to a process, unless more are asked for.
_OUT_OF_THE_WAY = 900

# Bytes and records that are read, more than a recording has: a file that was made to do harm is
# read no further. Each search for a record where none is counts as some bytes.
_MOST_READ, _MOST_IN_LOG, _A_CHECK = 64 << 20, 500_000, 512


class Store:
    """A recording in a file, or in a nameless one that a forked process can read."""

    def __init__(self, file: int, path: Path | None) -> None:
        self.path = path
        self._file = file
        self._status = os.fstat(file)
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
        if not self._is_ours(self._file):  # closed by the program, and its own by now
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
        frames = (_read_at(self._file, length, at) for at, length in places)
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
            if self._is_ours(file):
                os.close(file)

    def _is_ours(self, file: int) -> bool:
        return os.path.samestat(os.fstat(file), self._status)

    def _turn(self, stop: int) -> None:
        self._is_settled = False
        self._moved += 1
        numbers = FORMAT, os.getpid(), self._file, self._moved, self._start, stop
        self._put(HEAD.pack(MAGIC, *numbers, __version__.encode()), 0)
        self._is_settled = not stop

    def _put(self, data: bytes, at: int) -> None:
        if _write_at(self._file, data, at) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _read_there(file: int, size: int, at: int) -> bytes:
    os.lseek(file, at, os.SEEK_SET)
    return os.read(file, size)


def _write_there(file: int, data: bytes, at: int) -> int:
    os.lseek(file, at, os.SEEK_SET)
    return os.write(file, data)


_read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_there)
_write_at: Callable[[int, bytes, int], int] = getattr(os, "pwrite", _write_there)
"""What Unix has, and Windows does not: there only one thread at a time reads or writes a file."""


def new_file(path: Path | None) -> int:
    """Return a new file: of that name, or a nameless one in memory where there is such a thing."""
    if path is not None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _AS_IT_IS, 0o666)
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


class Head(NamedTuple):
    """What the first page says; ``stop`` is 0 of a log that was not finished."""

    format: int
    process: int
    file: int
    moved: int
    start: int
    stop: int
    version: bytes


def head_of(page: bytes) -> Head | None:
    """Return what the beginning of a file says; None if it is not a recording."""
    if len(page) < HEAD.size or not page.startswith(MAGIC):
        return None
    return Head(*HEAD.unpack_from(page)[1:])


def read_log(file: int) -> Log:
    """Return the records of a log, which may be written and moved meanwhile."""
    for _ in range(5):
        found = _found(file)
        now = head_of(_read_at(file, HEAD.size, 0))
        if now is None or found.head is None or now.moved == found.head.moved:
            break
    return found


def _found(file: int) -> Log:
    page = _read_at(file, PAGE, 0)
    head = head_of(page)
    found = Log({}, _note(page), head)
    size = os.fstat(file).st_size
    start = head.start if head is not None and PAGE <= head.start <= size else PAGE
    stop = head.stop if head is not None and head.stop > start else size
    found.missing = max(0, stop - size)
    found.damaged = min(stop, size) - start
    log = _read_at(file, min(found.damaged, _MOST_READ), start)
    for key, _, payload in islice(_records(log), _MOST_IN_LOG):
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


_MOST_TEXT = dict.fromkeys(TABLES, 2 << 20) | {"graphs": 20 << 20, "sources": 32 << 20}
"""Bytes that are read of the text of each table, unpacked; ten times as many in memory."""

_A_LIST = 16  # bytes that a list counts more: an empty one takes 2 there, and 64 in memory

# Rows that are read of each table; those beyond are counted as left out. A bound against files that
# are broken or made to fill the memory, not a measured one.
_MOST_RECORDS = dict.fromkeys(TABLES, 10_000) | {"findings": 500}

_NAMES = {"graphs": "graph", "sources": "source file", "timeline": "part of the memory curve"}


@dataclass(slots=True)
class Log:
    """The records of a log, and what they say; ``damaged`` and ``missing`` bytes of it could not be
    read, or are not there.
    """

    payloads: dict[Key, bytes]
    note: bytes = b""
    head: Head | None = None
    damaged: int = 0
    missing: int = 0
    _begun: Sequence[BackwardCall] = ()
    _room: dict[str, int] = field(default_factory=_MOST_TEXT.copy)
    _left_out: Counter[str] = field(default_factory=Counter)

    def recording(self) -> Recording:
        """Return all that can be read; the totals count the calls that the table shows.

        Raise ValueError where there is no header.
        """
        header = self._first("header", partial(loads, Header))
        if header is None:
            raise ValueError("it has no header")
        rows = dict(self._all("calls", partial(loads, BackwardCall)))
        self._begun = loads(tuple[BackwardCall, ...], self.note or b"[]")
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
        for call in self._begun:
            what = f"backward call {call.number:,}"
            what += " (autograd.grad)" if call.kind == "grad" else ""
            what += f" at {call.site.place}" if call.site else ""
            yield f"{what} had begun and had not ended"

    def losses(self) -> Iterator[str]:
        """Yield a sentence for each kind of loss."""
        lost = nbytes(self.missing + self.damaged)
        if self.missing:
            yield f"the recording is cut off: {lost} at its end are missing, the rest is shown"
        elif self.damaged:
            yield f"the recording is damaged: {lost} of it cannot be read, the rest is shown"
        for table, count in (+self._left_out).items():
            what = counted(count, _NAMES.get(table, table.removesuffix("s")))
            yield f"skipped {what} of the recording: unreadable or too large"

    def _first(self, table: str, read: Callable[[bytes], T]) -> T | None:
        return next((value for _, value in self._all(table, read)), None)

    def _all(self, table: str, read: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
        """Yield the values of a table by their keys, without those that cannot be read."""
        payloads, most = self.payloads.items(), _MOST_RECORDS[table]
        records = [(key, payload) for (name, key), payload in payloads if name == table]
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


_FOUND_SINCE = (
    *("fix", "alternatives", "untried"),
    *("site", "label", "related", "severity", "parameters"),
)
"""The fields of a finding that a rehearsal may change."""


def amend(path: Path, since: Recording) -> None:
    """Put what was found since into a recording that is over: fixes of the findings that it has,
    where the way to a parameter was cut, and who trains what.
    """
    better = {each.cause: each for each in since.findings if each.fix is not None or each.untried}
    table = since.summary.training.table
    with suppress(OSError, ValueError), path.open("r+b", buffering=0) as file:
        log = read_log(file.fileno())
        head, frames = log.head, b""
        for key in log.payloads if head is not None and head.format == FORMAT else ():
            own = loads(Finding, log.payloads[key]) if key[0] == "findings" else None
            if own is not None and (new := better.get(own.cause)) is not None:
                own = replace(own, **{name: getattr(new, name) for name in _FOUND_SINCE})
                frames += _frame(key, dumps(own).encode())
            if key[0] == "summary" and table is not None and table.rehearsed:
                summary = loads(Summary, log.payloads[key])
                if summary.training.table is not None:
                    training = replace(summary.training, table=table)
                    frames += _frame(key, dumps(replace(summary, training=training)).encode())
        if head is not None and head.stop and frames:
            end = head.stop + len(frames)
            changed = head._replace(moved=head.moved + 1, stop=end)
            _write_at(file.fileno(), frames, head.stop)
            _write_at(file.fileno(), HEAD.pack(MAGIC, *changed), 0)


def load(path: str | Path) -> Recording:
    """Return the recording in a file, of a run that is over, was killed, or still runs.

    Notes in it say what of the file is missing or damaged, and which calls had not ended. Raise
    GradscopeError for a file that is missing, of another format, or without a header.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # to open a pipe may wait for ever
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise _error(path, f"is {kind}: {_GIVE}")
        file = os.open(path, os.O_RDONLY | _AS_IT_IS)
    except FileNotFoundError as error:
        what = "no such file: record one with `gradscope run --save FILE SCRIPT`"
        raise _error(path, what) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _error(path, f"cannot be read: {reason}") from error
    try:
        return load_from(file, path)
    finally:
        os.close(file)


def load_from(file: int, path: Path | None = None) -> Recording:
    """Return the recording behind a file descriptor, whose position stays where it is."""
    try:
        page = _read_at(file, 100, 0)
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


def _read(log: Log, head: Head, file: int) -> Recording:
    """Return a recording with notes about what is not in it."""
    recording = log.recording()
    notes: list[str] = []
    outcome, running = recording.outcome, ""
    if not outcome.finished:
        notes += log.open_calls()
        running = _still_running(head, recording.header, file)
        outcome = replace(outcome, running=running)
    if not running:
        notes += log.losses()
    summary = replace(recording.summary, notes=(*recording.summary.notes, *notes))
    return replace(recording, outcome=outcome, summary=summary)


def _still_running(head: Head, header: Header, file: int) -> str:
    """Return a line that says that the run has not ended, or may not have; empty if it was stopped.

    A process that still writes has the file open under the number that it has noted, which no
    other program that has its process number now has.
    """
    if header.host and (header.host != platform.node() or os.name == "nt"):
        who = f"process {header.pid} on {header.host}"
        return f"the run had not finished when this was read: {who} still runs, or was stopped"
    try:
        theirs = os.stat(f"/proc/{head.process}/fd/{head.file}")
        alive = os.path.samestat(theirs, os.fstat(file))
    except FileNotFoundError:
        alive = not os.path.isdir("/proc/self/fd") and is_alive(head.process)
    except OSError:  # of another user
        alive = is_alive(head.process)
    return f"the run has not ended yet (process {header.pid})" if alive else ""


def is_alive(process: int) -> bool:
    """Return whether there is a process of this number, or may be."""
    if os.name == "nt":  # where a signal of number 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)  # it is there, and another user's
    return True


def _error(path: Path | None, what: str) -> GradscopeError:
    return GradscopeError(f"{path or 'the recording'}: {what}")
