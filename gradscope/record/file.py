"""The SQLite file of a recording: its tables, and how it is created, written, checked and read.

Six tables have a key and a value each; writing a value again under its key replaces it. Commits go
through SQLite's rollback journal without waiting for the disk: a killed process leaves a readable
file, a reader may come while it is written, and a run that ends leaves nothing but the file.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from gradscope.errors import GradscopeError
from gradscope.model import (
    SCHEMA,
    BackwardCall,
    Finding,
    Graph,
    Header,
    Outcome,
    Recording,
    Sample,
    Summary,
)
from gradscope.record.codec import Decoder, parse

Key: TypeAlias = tuple[str, "int | str"]
"""A table and the key in it."""

TABLES = ("meta", "calls", "graphs", "findings", "timeline", "sources")

APPLICATION = int.from_bytes(b"GSCP", "big")
"""The number in the head of an SQLite file that says what kind of file it is."""

_HEAD = 100
_MAGIC = b"SQLite format 3\0"
_GIVE = "give a file that `gradscope run --save FILE` wrote"


def create(path: Path | None) -> sqlite3.Connection:
    """Make an empty recording at ``path``, in the place of an older one; without one, in memory.

    Raise GradscopeError where it cannot be written.
    """
    try:
        file = ":memory:" if path is None else str(_make_way(path.resolve()))
        # timeout=0: the program that is recorded never waits.
        connection = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        for table in TABLES:
            kind = "TEXT" if table == "meta" else "INTEGER"
            connection.execute(f"CREATE TABLE {table} (key {kind} PRIMARY KEY, value)")
        connection.execute("COMMIT")
    except (OSError, ValueError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        what = f"the recording cannot be written there ({reason}): choose another file"
        raise _error(path, what) from error
    return connection


def _make_way(path: Path) -> Path:
    """Put an empty file at ``path``, in the place of a recording or an empty file only."""
    if path.exists():
        if not path.is_file():
            raise _error(path, "not a regular file: choose another file for the recording")
        if path.stat().st_size and _application(_head(path)) != APPLICATION:
            what = "exists and is not a gradscope recording: delete it or choose another file"
            raise _error(path, what)
        path.unlink()
    _journal(path).unlink(missing_ok=True)
    path.open("xb").close()
    return path


def write(connection: sqlite3.Connection, batch: Mapping[Key, Any]) -> None:
    """Write all of ``batch`` or, on an error, nothing; a value of None deletes that of a key."""
    try:  # from the first statement on: a signal's handler may raise between any two
        connection.execute("BEGIN IMMEDIATE")
        for (table, key), value in batch.items():
            connection.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether this failed only because another program reads or writes the file just now."""
    busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in busy


def pack(text: str) -> bytes:
    """Compress a text, as large ones are stored."""
    return zlib.compress(text.encode(), 1)


def load(path: str | Path) -> Recording:
    """Return the recording in a file, of a run that is over, was killed, or still goes on.

    Raise GradscopeError for a file that is missing, locked, damaged, too new, or no recording.
    """
    path = Path(path)
    _check(path)
    try:
        # Writable, so that SQLite can undo half a commit that a killed process left.
        address = f"{path.resolve().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=5)) as connection:
            return read(connection)
    except sqlite3.Error as error:
        if is_locked(error):
            raise _error(path, "locked by another program: try again in a moment") from error
        raise _damaged(path, error) from error
    except (ValueError, zlib.error) as error:
        raise _damaged(path, error) from error


def _check(path: Path) -> None:
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise _error(path, f"is {kind}: {_GIVE}")
    try:
        head = _head(path)
    except FileNotFoundError as error:
        what = "no such file: record one with `gradscope run --save FILE SCRIPT`"
        raise _error(path, what) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _error(path, f"cannot be read: {reason}") from error
    if not head.startswith(_MAGIC) or (len(head) == _HEAD and _application(head) != APPLICATION):
        raise _error(path, f"not a gradscope recording: {_GIVE}")
    # A commit in progress has a journal, and may have written no more than the head.
    committing = _journal(path.resolve()).exists()
    if len(head) < _HEAD or (not committing and path.stat().st_size < _size(head)):
        raise _damaged(path, "its end is missing")
    schema = int.from_bytes(head[60:64], "big")
    if schema > SCHEMA:
        what = f"written by a newer gradscope (schema {schema}); this one reads up to {SCHEMA}"
        raise _error(path, f"{what}: upgrade gradscope")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _size(head: bytes) -> int:
    """Return the bytes of a whole file: the size of a page times the number of pages."""
    return int.from_bytes(head[16:18], "big") * int.from_bytes(head[28:32], "big")


def _journal(path: Path) -> Path:
    """Return where SQLite keeps what a commit in progress replaces."""
    return path.with_name(path.name + "-journal")


def _application(head: bytes) -> int:
    return int.from_bytes(head[68:72], "big")


def _damaged(path: Path, reason: object) -> GradscopeError:
    return _error(path, f"the recording is damaged or cut off ({reason}): record the run again")


def _error(path: Path | None, what: str) -> GradscopeError:
    return GradscopeError(f"{path}: {what}")


def read(connection: sqlite3.Connection) -> Recording:
    """Return the recording behind a connection.

    Raise ValueError, zlib.error or sqlite3.Error where it is damaged.
    """
    tables = _tables(connection)
    meta = tables["meta"]
    if not {"layout", "header"} <= meta.keys():
        raise ValueError("it has no header")
    decoder = Decoder(_layout(meta["layout"]))
    calls = [decoder.loads(BackwardCall, text) for text in tables["calls"].values()]
    graphs = {
        number: _sound(decoder.loads(Graph, _unpack(value)))
        for number, value in tables["graphs"].items()
    }
    return Recording(
        header=decoder.loads(Header, meta["header"]),
        outcome=decoder.loads(Outcome, meta["outcome"]) if "outcome" in meta else Outcome(),
        summary=decoder.loads(Summary, meta["summary"]) if "summary" in meta else Summary(),
        calls=tuple(sorted(calls, key=lambda call: call.number)),
        graphs=graphs,
        findings=tuple(decoder.loads(Finding, text) for text in tables["findings"].values()),
        timeline=tuple(decoder.loads(Sample, text) for text in tables["timeline"].values()),
        sources=dict(_source(value) for value in tables["sources"].values()),
    )


def _tables(connection: sqlite3.Connection) -> dict[str, dict[Any, Any]]:
    """Return all tables as of one moment, each in the order of its keys."""
    try:
        connection.execute("BEGIN")
        wanted = "SELECT key, value FROM {} WHERE value IS NOT NULL ORDER BY key"
        return {table: dict(connection.execute(wanted.format(table))) for table in TABLES}
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _unpack(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("expected packed text")
    return zlib.decompress(value)


def _layout(text: Any) -> dict[str, list[str]]:
    layout = parse(text)
    if not isinstance(layout, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in layout.values()
    ):
        raise ValueError("its layout is not one")
    return layout


def _source(value: Any) -> tuple[str, str]:
    pair = parse(_unpack(value))
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
