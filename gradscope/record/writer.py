"""Records what a run is as it happens: into a file that outlives a killed process, or into memory for the live report.

What is new or has changed waits in memory for the next commit, some 20 a second. No thread does this, for a thread
would be seen by the program that is recorded: a commit rides on whatever call comes next.
"""

from __future__ import annotations

import os
import sqlite3
import tokenize
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any
from weakref import finalize

from gradscope.errors import GradscopeError
from gradscope.model import (
    BackwardCall,
    Finding,
    Graph,
    Header,
    Outcome,
    Recording,
    Sample,
    Site,
    Summary,
)
from gradscope.record import codec
from gradscope.record.bounds import CallFolder, Curve
from gradscope.record.file import Key, create, is_locked, load, pack, read, write

__all__ = ["RecordingWriter", "load", "working_directory"]

GRAPHS_AT_SITE = 200
"""Most graphs stored for one call site: enough for a growing graph to be seen growing."""

NODES_AT_SITE = 100_000
"""Once the graphs of a site have this many nodes no further one is stored, for large ones take long to write."""

GRAPH_BYTES = 32 << 20
"""Most bytes of all stored graphs, compressed."""

SIGNATURES = 10_000
"""Most signatures remembered; a graph of a further one is compared by its content."""

SOURCE_BYTES = 2 << 20
"""Larger files are data, not source."""

COMMIT_EVERY = 0.05
"""Seconds."""

_IN_GRAPH, _IN_NODE, _IN_SAVED = (
    {name: at for at, name in enumerate(codec.LAYOUT[kind])}
    for kind in ("Graph", "Node", "SavedTensor")
)


class RecordingWriter:
    """Writes a recording to ``path``, or to memory where that is None; any thread may call it.

    Raises GradscopeError where ``path`` cannot be written. From then on nothing it meets disturbs the program that is
    recorded: a full disk ends the writing and is told by ``problem``. In a forked child it does nothing at all.
    """

    def __init__(self, path: Path | None, header: Header) -> None:
        self.path = path
        self.problem: str | None = None
        self._header = header
        self._process = os.getpid()
        self._lock = RLock()
        self._closed = False
        self._committing = False
        self._committed = 0.0
        self._waiting: dict[Key, Any] = {}
        self._calls = CallFolder()
        self._curve = Curve()
        self._findings: dict[object, tuple[int, Finding]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._contents: dict[bytes, int] = {}
        self._nodes_at: Counter[Site | None] = Counter()
        self._graph_bytes = 0
        self._not_stored = 0
        self._sources: set[str] = set()
        self._unreadable: set[str] = set()
        self._summary: Summary | None = None
        self._connection = create(path)
        # A writer that is dropped without close(), as after the live report, must not make Python warn of it.
        finalize(self, self._connection.close)
        self._put("meta", "layout", codec.dump_plain(codec.LAYOUT))
        self._put("meta", "header", codec.dumps(header))
        self._commit()
        if self.problem:
            raise GradscopeError(self.problem)

    def known(self, signature: Hashable, site: Site | None = None) -> int | None:
        """The number of the graph of this signature, None where it is not known yet, 0 where it has no room."""
        if self._idle():
            return 0
        with self._lock:
            number = self._numbers.get(signature)
            if number is None and self._full(site):
                self._not_stored += 1
                return 0
            return number

    def graph(self, signature: Hashable, graph: Graph, site: Site | None = None) -> int:
        """Store a graph that a call at ``site`` met, once for all its likes; its number, 0 without room.

        Without a ``site`` it counts for the place where its first root was made.
        """
        if self._idle():
            return 0
        if site is None and graph.roots:
            site = graph.nodes[graph.roots[0].node].site
        with self._lock:
            number = self.known(signature, site)
            if number is None:
                number = self._store(graph, site)
                if len(self._numbers) < SIGNATURES:
                    self._numbers[signature] = number
                self._tick()
            return number

    def call(self, call: BackwardCall) -> None:
        """Add a backward call that has ended; alike ones share a row."""
        if self._idle():
            return
        with self._lock:
            self._calls.add(call)
            self._tick()

    def finding(self, finding: Finding) -> None:
        """Add a finding; one of a known cause only raises the count of the first."""
        if self._idle():
            return
        with self._lock:
            place, first = self._findings.get(finding.cause, (len(self._findings), None))
            if first is not None:
                finding = replace(first, count=first.count + finding.count)
            self._keep(place, finding)
            if first is None:
                self._commit()
            else:
                self._tick()

    def amend(self, finding: Finding) -> None:
        """Replace the finding of the same cause, but for its count: more is known now, say that it was caught."""
        if self._idle():
            return
        with self._lock:
            place, first = self._findings.get(finding.cause, (len(self._findings), finding))
            self._keep(place, replace(finding, count=first.count))
            self._tick()

    def sample(self, sample: Sample) -> None:
        """Add a point of the memory curve."""
        if self._idle():
            return
        with self._lock:
            self._curve.add(sample)
            self._tick()

    def source(self, file: str, text: str | None = None) -> None:
        """Store the text of a source file, once; one that cannot be read is passed over unless ``text`` is given."""
        if file in self._sources or (text is None and file in self._unreadable) or self._idle():
            return
        if text is None:
            text = _source_text(file)
        if text is None:
            self._unreadable.add(file)
            return
        with self._lock:
            if file not in self._sources:
                self._put("sources", len(self._sources), pack(codec.dump_plain([file, text])))
                self._sources.add(file)
                self._tick()

    def summary(self, summary: Summary) -> None:
        """Replace the totals."""
        if self._idle():
            return
        with self._lock:
            self._summary = summary
            self._tick()

    def finish(self, outcome: Outcome, summary: Summary) -> None:
        """Write down how the run ended, and all that is still waiting."""
        if self._idle():
            return
        with self._lock:
            self._summary = summary
            self._put("meta", "outcome", codec.dumps(replace(outcome, finished=True)))
            self._connection.execute(
                "PRAGMA busy_timeout = 5000"
            )  # a reader may be at it, and nobody waits for us now
            self._commit()
            if self._waiting and not self.problem:
                self.problem = f"{self.path}: another program holds the recording locked; its end was not written"

    def flush(self) -> None:
        """Write all that is waiting, as before the process may die."""
        if self._idle():
            return
        with self._lock:
            self._commit()

    def read(self) -> Recording:
        """The recording so far."""
        if self._idle():
            return Recording(self._header)
        with self._lock:
            self._commit()
            return read(self._connection)

    def close(self) -> None:
        """Write what is waiting and let go of the file; whatever is called later does nothing."""
        if self._idle():
            return
        with self._lock:
            self._commit()
            self._closed = True
            self._connection.close()

    def _idle(self) -> bool:
        """True after ``close``, and in a forked child, which shares the file with its parent."""
        return self._closed or os.getpid() != self._process

    def _put(self, table: str, key: int | str, value: Any) -> None:
        if not self.problem:
            self._waiting[table, key] = value

    def _keep(self, place: int, finding: Finding) -> None:
        self._findings[finding.cause] = (place, finding)
        self._put("findings", place, codec.dumps(finding))

    def _full(self, site: Site | None) -> bool:
        return self._nodes_at[site] >= NODES_AT_SITE or self._graph_bytes >= GRAPH_BYTES

    def _store(self, graph: Graph, site: Site | None) -> int:
        plain = codec.plain(graph)
        text = codec.dump_plain(plain)
        content = _content(plain)
        number = self._contents.get(content)
        if number is None:
            number = self._contents[content] = len(self._contents) + 1
            packed = pack(text)
            self._put("graphs", number, packed)
            self._nodes_at[site] += max(len(graph.nodes), NODES_AT_SITE // GRAPHS_AT_SITE)
            self._graph_bytes += len(packed)
        return number

    def _tick(self) -> None:
        if monotonic() - self._committed >= COMMIT_EVERY:
            self._commit()

    def _commit(self) -> None:
        """Write what has changed; while a reader has the file locked it keeps waiting for the next commit."""
        # A destructor that runs in the middle may call us again.
        if self._committing or self.problem:
            return
        self._committing = True
        try:
            self._gather()
            batch, self._waiting = self._waiting, {}
            try:
                write(self._connection, batch)
            except BaseException as error:
                self._waiting = batch | self._waiting
                if not isinstance(error, sqlite3.Error):
                    raise
                if not is_locked(error):
                    self.problem = (
                        f"{self.path}: the recording ends early, writing it failed: {error}"
                    )
        finally:
            self._committing = False
            self._committed = monotonic()

    def _gather(self) -> None:
        for index, call in self._calls.take_changed():
            self._put("calls", index, codec.dumps(call))
        for place, point in self._curve.take_changed():
            self._put("timeline", place, None if point is None else codec.dumps(point))
        if self._summary is not None:
            summary = replace(self._summary, notes=(*self._summary.notes, *self._notes()))
            self._put("meta", "summary", codec.dumps(summary))

    def _notes(self) -> list[str]:
        notes = []
        if self._not_stored:
            notes.append(f"graphs not stored because too many others were: {self._not_stored:,}")
        if self._calls.mixed:
            notes.append(
                f"backward calls counted only with others of their site: {self._calls.mixed:,}"
            )
        return notes


def working_directory() -> str:
    """The working directory, empty where it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _content(plain: Any) -> bytes:
    """What makes two graphs the same: all but when they were built. ``plain``, which this changes, is a graph's."""
    nodes = plain[_IN_GRAPH["nodes"]]
    newest = max((node[_IN_NODE["built_after"]] for node in nodes), default=0)
    for node in nodes:
        node[_IN_NODE["sequence_nr"]] = None
        node[_IN_NODE["built_after"]] = node[_IN_NODE["built_after"]] == newest
        node[_IN_NODE["freed_by"]] = node[_IN_NODE["freed_by"]] is None
        for saved in node[_IN_NODE["saved"]]:
            saved[_IN_SAVED["version"]] = None
    return blake2b(codec.dump_plain(plain).encode(), digest_size=16).digest()


def _source_text(file: str) -> str | None:
    try:
        if not Path(file).is_file() or Path(file).stat().st_size > SOURCE_BYTES:
            return None
        with tokenize.open(file) as lines:
            return lines.read()
    except (OSError, ValueError, SyntaxError):  # SyntaxError: an unknown coding line
        return None
