"""Writes the recording of a run while it runs, to a file that outlives it, or to memory.

What is new is in the file at once. What only counts on is noted there at once, and written some ten
times a second: no thread does this, as the program would see it, but the next call.
"""

from __future__ import annotations

import linecache
import os
import tokenize
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
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
from gradscope.record.bounds import CallFolder, Curve, Graphs, Row
from gradscope.record.file import create, pack
from gradscope.record.log import Key, Memory, Store
from gradscope.record.reading import Reading

SOURCE_BYTES = 2 << 20
"""Larger files are data, not source."""

WRITE_EVERY = 0.1
"""Seconds for which the totals and the memory curve may lag behind the calls in a file."""

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
    """Writes a recording to a file or a ``Store``, or to memory; any thread may call it.

    Raises GradscopeError where the file cannot be written. From then on it never disturbs the
    program that is recorded: a full disk ends the writing, and ``problem`` says so. In a forked
    child it does nothing at all.
    """

    def __init__(self, save: Path | Store | None, header: Header) -> None:
        self.problem: str | None = None
        self.lock = RLock()
        self.header = header
        self._process = os.getpid()
        self._closed = False
        self._committing = False
        self._committed = 0.0
        self._waiting: dict[Key, bytes] = {}
        self._calls = CallFolder()
        self._noted: dict[int, str] = {}
        """The rows that have counted on since they were written."""
        self._curve = Curve()
        self._graphs = Graphs()
        self._findings: dict[object, tuple[int, Finding]] = {}
        self._sources: dict[str, bool] = {}
        """Whether each source file that was asked for is stored."""
        self._summary: Callable[[], Summary] | None = None
        self._begun: Callable[[], str] = str
        store = create(save) if isinstance(save, Path) else save
        self._store: Store | Memory = Memory() if store is None else store
        self.path = self._store.path
        # A program that runs its exit functions itself does not end the recording.
        finalize(self, self._store.close).atexit = False
        self._put("layout", 0, codec.dump_plain(codec.LAYOUT))
        self._put("header", 0, codec.dumps(header))
        self._commit()
        if self.problem:
            raise GradscopeError(self.problem)

    @property
    def is_idle(self) -> bool:
        """True after ``close``, and in a forked child, which shares the file with its parent."""
        return self._closed or os.getpid() != self._process

    def follow(self, totals: Callable[[], Summary], begun: Callable[[], str] = str) -> None:
        """Have the totals from ``totals`` whenever there is something to write, and from ``begun``
        ``[number, …]`` of each call that has not ended, as the function of that name returns it.
        """
        self._summary, self._begun = totals, begun

    @_while_open
    def amend(self, /, **known: Any) -> None:
        """Note in the header what is known only now."""
        self.header = replace(self.header, **known)
        self._put("header", 0, codec.dumps(self.header))
        self._write_through()

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
                    self._write_through()
            return number

    def begin(self) -> None:
        """Note that a backward call begins."""
        if self._store.is_shared and not self.is_idle:
            with self.lock:
                self._note()

    def call(self, call: BackwardCall) -> Like | None:
        """Add a backward call that has ended; return what adds more that are like it."""
        if self.is_idle:
            return None
        with self.lock:
            row = self._calls.add(call)
            is_new = row.count == call.count
            if is_new and call.site is not None:
                self.source(call.site.file)
            self._counted(row, is_new=is_new)
            return Like(self, row)

    def _counted(self, row: Row, *, is_new: bool = False) -> None:
        if not self._store.is_shared:
            return  # it is written when it is read
        if is_new or monotonic() - self._committed >= WRITE_EVERY:
            self._commit()
        else:
            changed = (row.index, row.count, row.last_number, float(row.ended), row.live_bytes)
            self._noted[row.index] = f"[{','.join(map(repr, changed))}]"
            self._note()

    def _note(self) -> None:
        if not self._store.is_shared or self.problem:
            return
        text = f"[[{self._begun()}],[{','.join(self._noted.values())}]]"
        try:
            fits = self._store.note(text.encode())
        except OSError as error:
            self._fail(error)
            return
        if not fits and self._noted:
            self._commit()

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
        self._write_through()

    @_while_open
    def settle(self, finding: Finding) -> None:
        """Write what has become of a prediction."""
        place, first = self._findings.get(finding.cause, (0, None))
        if first is not None:
            settled = replace(first, came_true=finding.came_true, withdrawn=finding.withdrawn)
            self._findings[finding.cause] = (place, settled)
            self._put("findings", place, codec.dumps(settled))
            self._write_through()

    @_while_open
    def sample(self, sample: Sample) -> None:
        """Add a point of the memory curve."""
        self._curve.add(sample)

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
            self._write_through()

    @_while_open
    def finish(self, outcome: Outcome, summary: Summary) -> None:
        """Write how the run ended, and all that is still waiting."""
        self.follow(lambda: summary)
        self._put("outcome", 0, codec.dumps(replace(outcome, finished=True)))
        self._commit()
        self._summary = None
        try:
            self._store.finish()
        except OSError as error:
            self._fail(error)

    def read(self) -> Recording:
        """Return the recording so far."""
        if self.is_idle:
            return Recording(self.header)
        with self.lock:
            self._commit()
            return Reading(self._store.found()).recording()

    @_while_open
    def close(self) -> None:
        """Write what is waiting and let go of the file; later calls do nothing."""
        self._commit()
        self._closed = True
        self._store.close()

    def _put(self, table: str, key: int, value: str | bytes) -> None:
        if not self.problem:
            self._waiting[table, key] = value.encode() if isinstance(value, str) else value

    def _write_through(self) -> None:
        if self._store.is_shared:
            self._commit()

    def _commit(self) -> None:
        """Write what has changed."""
        # A destructor that runs in the middle may call us again.
        if self._committing or self.problem:
            return
        self._committing = True
        try:
            self._gather()
            batch, self._waiting = self._waiting, {}
            try:
                if batch:
                    self._store.write(batch)
            except BaseException as error:
                self._waiting = batch | self._waiting
                if not isinstance(error, OSError):
                    raise
                self._fail(error)
            self._noted.clear()
            self._note()
        finally:
            self._committing = False
            self._committed = monotonic()

    def _fail(self, error: OSError) -> None:
        why = error.strerror or error
        self.problem = f"{self.path}: the recording ends early, writing it failed: {why}"

    def _gather(self) -> None:
        for index, call in self._calls.take_changed():
            self._put("calls", index, codec.dumps(call))
        for place, point in self._curve.take_changed():
            self._put("timeline", place, b"" if point is None else codec.dumps(point))
        if self._summary is not None:
            summary = self._summary()
            summary = replace(summary, notes=(*summary.notes, *self._notes()))
            self._put("summary", 0, codec.dumps(summary))

    def _notes(self) -> list[str]:
        counts = {
            "graphs not stored because too many others were": self._graphs.refused,
            "backward calls counted only with others of their site": self._calls.mixed,
        }
        return [f"{what}: {number:,}" for what, number in counts.items() if number]


@dataclass(frozen=True, slots=True)
class Like:
    """Adds calls to the row of one that was written."""

    writer: RecordingWriter
    row: Row

    def takes(self, number: int) -> bool:
        """Return whether a call of this number may be added."""
        return self.row.goes_on_with(number)

    def add(self, number: int, ended: float, live_bytes: int, figures: tuple[int, ...]) -> None:
        """Add a call that has ended."""
        writer, row = self.writer, self.row
        if writer._store.is_shared and writer.is_idle:
            return
        with writer.lock:
            row.add(number, ended, live_bytes, figures)
            writer._calls.changed.add(row.index)
            writer._counted(row)


def begun(kind: str, site: Site | None) -> str:
    """Return what is noted of a call while it runs, behind its number."""
    return codec.dump_plain([kind, None if site is None else codec.plain(site)])[1:-1]


def _source_text(file: str) -> str | None:
    try:
        if not Path(file).is_file():  # a notebook's cell, which IPython puts there
            cell = linecache.cache.get(file, ())
            return "".join(cell[2]) if len(cell) == 4 else None
        if Path(file).stat().st_size > SOURCE_BYTES:
            return None
        with tokenize.open(file) as lines:
            return lines.read()
    except (OSError, ValueError, SyntaxError):  # SyntaxError: an unknown coding line
        return None
