"""Writes the recording of a run while it goes on, to a file that outlives it, or to memory.

What is new or has changed waits in memory for the next commit, some 20 a second. No thread does
this, as the program would see it: a commit rides on whatever call comes next.
"""

from __future__ import annotations

import os
import sqlite3
import tokenize
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any, Concatenate, ParamSpec
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
from gradscope.record.file import Key, create, is_locked, pack, read, write
from gradscope.record.graphs import Graphs

SOURCE_BYTES = 2 << 20
"""Larger files are data, not source."""

COMMIT_EVERY = 0.05
"""Seconds after which a call is in the file at the latest, if another one comes."""

_WITHOUT_FILE = 1.0
"""Seconds between commits to memory, which nobody else can read; what waits is small."""

GATHER_EVERY, _GATHER_WITHOUT_FILE = 0.02, 0.1
"""Seconds for which those who write may keep calls back at most, to write them together."""

P = ParamSpec("P")


def _while_open(
    method: Callable[Concatenate[RecordingWriter, P], None],
) -> Callable[Concatenate[RecordingWriter, P], None]:
    """Let a method do nothing once the writer is idle, and else hold its lock."""

    @wraps(method)
    def guarded(self: RecordingWriter, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.is_idle:
            with self.lock:
                method(self, *args, **kwargs)

    return guarded


class RecordingWriter:
    """Writes a recording to ``path``, or to memory where that is None; any thread may call it.

    Raises GradscopeError where ``path`` cannot be written. From then on it never disturbs the
    program that is recorded: a full disk ends the writing, and ``problem`` says so. In a forked
    child it does nothing at all.
    """

    def __init__(self, path: Path | None, header: Header) -> None:
        self.path = path
        self.problem: str | None = None
        self.lock = RLock()
        self.header = header
        self._process = os.getpid()
        self._closed = False
        self._committing = False
        self._committed = 0.0
        self._wait = _WITHOUT_FILE if path is None else COMMIT_EVERY - GATHER_EVERY
        self.gather_every = _GATHER_WITHOUT_FILE if path is None else GATHER_EVERY
        self._waiting: dict[Key, Any] = {}
        self._calls = CallFolder()
        self._curve = Curve()
        self._graphs = Graphs()
        self._findings: dict[object, tuple[int, Finding]] = {}
        self._sources: dict[str, bool] = {}
        """Whether each source file that was asked for is stored."""
        self._summary: Summary | None = None
        self._connection = create(path)
        # A writer that is dropped without close(), as after the live report, must not make Python
        # warn of it. A program that runs its exit functions itself does not end the recording.
        finalize(self, self._connection.close).atexit = False
        self._put("meta", "layout", codec.dump_plain(codec.LAYOUT))
        self._put("meta", "header", codec.dumps(header))
        self._commit()
        if self.problem:
            raise GradscopeError(self.problem)

    @property
    def is_idle(self) -> bool:
        """True after ``close``, and in a forked child, which shares the file with its parent."""
        return self._closed or os.getpid() != self._process

    @_while_open
    def amend(self, /, **known: Any) -> None:
        """Note in the header what is known only now."""
        self.header = replace(self.header, **known)
        self._put("meta", "header", codec.dumps(self.header))
        self._tick()

    def known(self, signature: Hashable, site: Site | None = None) -> int | None:
        """Return the number of a signature's graph, None for an unknown one, 0 without room."""
        if self.is_idle:
            return 0
        with self.lock:
            return self._graphs.known(signature, site)

    def graph(self, signature: Hashable, graph: Graph, site: Site | None = None) -> int:
        """Store a graph that a call at ``site`` met, similar ones once; return its number.

        It is 0 if there is no room.

        Without a ``site`` it counts for the place where its first root was made.
        """
        if self.is_idle:
            return 0
        if site is None and graph.roots:
            site = graph.nodes[graph.roots[0].node].site
        with self.lock:
            number = self._graphs.known(signature, site)
            if number is None:
                number, packed = self._graphs.add(signature, graph, site)
                if packed is not None:
                    self._put("graphs", number, packed)
                self._tick()
            return number

    @_while_open
    def call(self, call: BackwardCall) -> None:
        """Add a backward call that has ended; similar ones share a row."""
        self._calls.add(call)
        self._tick()

    @_while_open
    def finding(self, finding: Finding) -> None:
        """Add a finding; one of a known cause only raises the count of the first.

        One with a count of 0 takes the place of the first.
        """
        place, first = self._findings.get(finding.cause, (len(self._findings), None))
        if first is not None:
            newest = first if finding.count else finding
            finding = replace(newest, count=first.count + finding.count)
        self._findings[finding.cause] = (place, finding)
        self._put("findings", place, codec.dumps(finding))
        if first is None:
            self._commit()
        else:
            self._tick()

    @_while_open
    def settle(self, finding: Finding) -> None:
        """Write what has become of a prediction."""
        place, first = self._findings.get(finding.cause, (0, None))
        if first is not None:
            settled = replace(first, came_true=finding.came_true, withdrawn=finding.withdrawn)
            self._findings[finding.cause] = (place, settled)
            self._put("findings", place, codec.dumps(settled))
            self._tick()

    @_while_open
    def sample(self, sample: Sample) -> None:
        """Add a point of the memory curve."""
        self._curve.add(sample)
        self._tick()

    def source(self, file: str, text: str | None = None) -> None:
        """Store a source file once; leave one out that cannot be read, unless ``text`` is given."""
        stored = self._sources.get(file)
        if not (self.is_idle or stored or (stored is False and text is None)):
            self._store_source(file, _source_text(file) if text is None else text)

    @_while_open
    def _store_source(self, file: str, text: str | None) -> None:
        if text is None:
            self._sources.setdefault(file, False)
        elif not self._sources.get(file):
            place = sum(self._sources.values())
            self._put("sources", place, pack(codec.dump_plain([file, text])))
            self._sources[file] = True
            self._tick()

    @_while_open
    def summary(self, summary: Summary) -> None:
        """Replace the totals."""
        self._summary = summary
        self._tick()

    @_while_open
    def finish(self, outcome: Outcome, summary: Summary) -> None:
        """Write how the run ended, and all that is still waiting."""
        self._summary = summary
        self._put("meta", "outcome", codec.dumps(replace(outcome, finished=True)))
        # A reader may have the file locked, and no program waits for us any more.
        self._connection.execute("PRAGMA busy_timeout = 5000")
        self._commit()
        if self._waiting and not self.problem:
            self.problem = (
                f"{self.path}: another program holds the recording locked; its end was not written"
            )

    @_while_open
    def flush(self) -> None:
        """Write all that is waiting, as before the process may die."""
        self._commit()

    def read(self) -> Recording:
        """Return the recording so far."""
        if self.is_idle:
            return Recording(self.header)
        with self.lock:
            self._commit()
            return read(self._connection)

    @_while_open
    def close(self) -> None:
        """Write what is waiting and let go of the file; later calls do nothing."""
        self._commit()
        self._closed = True
        self._connection.close()

    def _put(self, table: str, key: int | str, value: Any) -> None:
        if not self.problem:
            self._waiting[table, key] = value

    def _tick(self) -> None:
        if monotonic() - self._committed >= self._wait:
            self._commit()

    def _commit(self) -> None:
        """Write what has changed; what a reader's lock keeps out waits for the next commit."""
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
        counts = {
            "graphs not stored because too many others were": self._graphs.refused,
            "backward calls counted only with others of their site": self._calls.mixed,
        }
        return [f"{what}: {number:,}" for what, number in counts.items() if number]


def _source_text(file: str) -> str | None:
    try:
        if not Path(file).is_file() or Path(file).stat().st_size > SOURCE_BYTES:
            return None
        with tokenize.open(file) as lines:
            return lines.read()
    except (OSError, ValueError, SyntaxError):  # SyntaxError: an unknown coding line
        return None
