"""Writes the recording of a run while it runs, to a file that outlives it, or to memory.

What is new is in the file at once. What only counts on is written some ten times a second: no
thread does this, as the program would see it, but the next call.
"""

from __future__ import annotations

import linecache
import os
import tokenize
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from operator import attrgetter
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any, TypeAlias, TypeVar, cast
from weakref import finalize

from gradscope.errors import GradscopeError
from gradscope.model import (
    FIGURES,
    BackwardCall,
    Cause,
    Finding,
    Graph,
    Header,
    Outcome,
    Recording,
    Sample,
    Site,
    Summary,
)
from gradscope.record.file import Key, Log, Store, create, dumps, pack, read_log

# Rows of calls at most, without the extra one for each kind of call at each site. Each takes a
# few hundred bytes in the file, and the page shows all of them.
ROWS = 2_000

# Of these, rows for one kind of call at one site: a loop whose graphs are never alike must leave
# some for others.
ROWS_AT_SITE = 200

RUNS = 1_998  # the memory curve has fewer runs of samples, with two points each: less than 4,000

_ALIKE = attrgetter(
    "kind", "site", "retain_graph", "create_graph", "inputs", "graph", "nodes", "nodes_run",
    "saved_tensors", "saved_bytes", "freed_tensors", "freed_bytes", "returned_bytes",
    "retained_bytes", "thread", "exception",
)  # fmt: skip
"""What two calls must have in common to share a row, beside the names of their roots."""

_figures = attrgetter(*FIGURES)
_ADDED_TO = "count", "number", "last_number", "ended", "live_bytes"
GRAPHS_AT_SITE = 200  # most graphs stored for one call site: enough to see a growing graph grow

NODES_AT_SITE = 100_000  # most nodes of the graphs of a site: large graphs take long to write

GRAPH_BYTES = 8 << 20  # most bytes of all stored graphs, compressed: as text more than are read


class FoldedCalls:
    """Calls folded into one row."""

    def __init__(self, index: int, call: BackwardCall) -> None:
        self.index = index
        self.first = call
        self.ended, self.live_bytes = call.ended, call.live_bytes
        self.count = call.count
        self.number, self.last_number = call.number, call.last_number
        self.figures: tuple[int, ...] = _figures(call)

    def add(
        self, number: int, ended: float, live_bytes: int, figures: tuple[int, ...], count: int = 1
    ) -> None:
        """Add a call like those in it, or some that are folded already; the calls within one end
        before it.
        """
        self.number = min(self.number, number)
        self.last_number = max(self.last_number, number)
        self.ended, self.live_bytes = ended, live_bytes
        self.count += count
        if figures != self.figures:
            self.figures = tuple(map(max, figures, self.figures))

    def folded(self) -> BackwardCall:
        """Return the record of the row."""
        known: dict[str, Any] = dict(zip(FIGURES, self.figures, strict=True))
        return replace(self.first, **known, **{name: getattr(self, name) for name in _ADDED_TO})


class CallFolder:
    """Backward calls, similar ones folded into rows.

    A row has ``started`` of its first call, ``ended`` and ``live_bytes`` of its last, and the
    largest sizes seen. Once a site has its share of rows, a call that matches none goes to one row
    for all such calls of its kind there; ``mixed`` counts them. ``changed`` are the indices of the
    rows that have changed since they were taken.
    """

    def __init__(self) -> None:
        self.mixed = 0
        self._rows: list[FoldedCalls] = []
        self._latest: dict[object, FoldedCalls] = {}
        self._rows_at: Counter[object] = Counter()
        self.changed: set[int] = set()

    def add(self, call: BackwardCall) -> FoldedCalls:
        """Add one call, or calls that are folded already; return their row."""
        alike = (*_ALIKE(call), call.parent is None, *[root.name for root in call.roots])
        row = self._latest.get(alike)
        if row is None:
            place = (call.kind, call.site)
            if self._rows_at[place] < ROWS_AT_SITE and len(self._rows) < ROWS:
                self._rows_at[place] += 1
                return self._start(alike, call)
            self.mixed += call.count
            rest = (*place, call.exception is None)
            row = self._latest.get(rest)
            if row is None:
                return self._start(rest, replace(call, graph=None))
        row.add(call.last_number, call.ended, call.live_bytes, _figures(call), call.count)
        self.changed.add(row.index)
        return row

    def _start(self, key: object, call: BackwardCall) -> FoldedCalls:
        row = self._latest[key] = FoldedCalls(len(self._rows), call)
        self._rows.append(row)
        self.changed.add(row.index)
        return row

    def take_changed(self) -> Iterator[tuple[int, BackwardCall]]:
        """Return the rows that changed since the last time, each with its index."""
        changed, self.changed = self.changed, set()
        return ((index, self._rows[index].folded()) for index in sorted(changed))


class Curve:
    """The memory curve in bounded size: the lowest and highest sample of each run, and the last.

    All runs are equally long. When there are too many, neighbours are joined, and runs are twice as
    long from then on.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Sample, ...]] = []
        self._length = 1
        self._open: tuple[Sample, ...] = ()
        self._in_open = 0
        self._last: Sample | None = None
        """The newest sample, if it is not yet taken."""
        self._changed_from = 0
        self._written = 0

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        self._open = _envelope(*self._open, sample)
        self._last = sample  # now, as a signal's handler may raise before and ``_runs`` be empty
        self._in_open += 1
        if self._in_open == self._length:
            self._runs.append(self._open)
            self._open, self._in_open = (), 0
            if len(self._runs) == RUNS:
                self._join()

    def _join(self) -> None:
        halves = iter(self._runs)
        pairs = zip(halves, halves, strict=True)
        self._runs = [_envelope(*first, *second) for first, second in pairs]
        self._length *= 2
        self._changed_from = 0

    def take_changed(self) -> Iterator[tuple[int, tuple[Sample, ...]]]:
        """Return the runs that changed since the last time, by place; empty ones are gone."""
        if self._last is None:
            return
        first, tail = self._changed_from, self._open
        if self._last not in (tail or self._runs[-1]):
            tail = (*tail, self._last)
        self._last = None
        runs = [*self._runs[first:], tail]
        gone = [()] * (self._written - first - len(runs))
        self._changed_from, self._written = len(self._runs), first + len(runs)
        yield from enumerate([*runs, *gone], first)


def _envelope(*samples: Sample) -> tuple[Sample, ...]:
    """Return the lowest and the highest sample, in the order of time."""
    ends = dict.fromkeys([min(samples, key=_level), max(samples, key=_level)])
    return tuple(sorted(ends, key=attrgetter("time")))


def _level(sample: Sample) -> tuple[int, int]:
    return sample.live_bytes, sample.held_bytes


SOURCE_BYTES = 2 << 20  # bytes: larger files are data, not source

# Seconds by which counts, totals and the memory curve may lag behind the calls that are added in a
# file, and so in `gradscope top`: writing them takes longer than a small call.
WRITE_EVERY = 0.1

# Up to this many calls in a row, everything is written with each: a short run that is killed
# loses nothing.
AT_ONCE = 100

Method = TypeVar("Method", bound=Callable[..., None])


Further: TypeAlias = Callable[[Sequence[int], float], None]
"""Adds calls of these numbers to the row of those like them, of which the last has ended then."""


def _while_open(method: Method) -> Method:
    """Let a method do nothing once the writer is idle, and else hold its lock."""

    @wraps(method)
    def guarded(self: RecordingWriter, /, *args: Any, **kwargs: Any) -> None:
        if not self.is_idle:
            with self.lock:
                method(self, *args, **kwargs)

    return cast(Method, guarded)


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
        """What is not in the file yet; without one, the recording itself."""
        self._calls = CallFolder()
        self._curve = Curve()
        self._numbers: dict[Hashable, int] = {}
        """Of the stored graphs, by their signatures."""
        self._nodes_at: Counter[Site | None] = Counter()
        self._graph_bytes = self._refused = 0
        """Of all stored graphs; and how many found no room."""
        self._findings: dict[Cause, int] = {}
        self._sources: set[str] = set()
        """The source files that were asked for."""
        self._summary: Callable[[], Summary] | None = None
        self._begun: Callable[[], str] = str
        self._store = create(save) if isinstance(save, Path) else save
        self.has_file = self._store is not None
        self.path = None if self._store is None else self._store.path
        if self._store is not None:
            # A program that runs its exit functions itself does not end the recording.
            finalize(self, self._store.close).atexit = False
        self._put("header", 0, dumps(header))
        self._commit()
        if self.problem:
            raise GradscopeError(self.problem)

    @property
    def is_idle(self) -> bool:
        """True after ``close``, and in a forked child, which shares the file with its parent."""
        return self._closed or os.getpid() != self._process

    def follow(self, totals: Callable[[], Summary], begun: Callable[[], str] = str) -> None:
        """Have the totals from ``totals`` whenever there is something to write, and from ``begun``
        ``[number,…]`` of each call that has not ended, with what the function of that name returns.
        """
        self._summary, self._begun = totals, begun

    @_while_open
    def amend(self, /, **known: Any) -> None:
        """Note in the header what is known only now."""
        self.header = replace(self.header, **known)
        self._write("header", 0, dumps(self.header))

    def known(self, signature: Hashable, site: Site | None = None) -> int | None:
        """Return the number of a signature's graph, None for an unknown one, 0 without room."""
        if self.is_idle:
            return 0
        with self.lock:
            number = self._numbers.get(signature)
            is_full = self._nodes_at[site] >= NODES_AT_SITE or self._graph_bytes >= GRAPH_BYTES
            if number is None and is_full:
                self._refused += 1
                return 0
            return number

    def graph(self, signature: Hashable, graph: Graph, site: Site | None = None) -> int:
        """Store a graph that a call at ``site`` met, one of each signature; return its number.

        It is 0 if there is no room.

        Without a ``site`` it counts for the place where its first root was made.
        """
        if site is None and graph.roots:
            site = graph.nodes[graph.roots[0].node].site
        with self.lock:
            number = self.known(signature, site)
            if number is None:
                packed = pack(dumps(graph))
                number = self._numbers[signature] = len(self._numbers) + 1
                self._nodes_at[site] += max(len(graph.nodes), NODES_AT_SITE // GRAPHS_AT_SITE)
                self._graph_bytes += len(packed)
                self._write("graphs", number, packed)
            return number

    @_while_open
    def begin(self) -> None:
        """Note that a backward call begins."""
        self._note()

    def call(self, call: BackwardCall) -> Further | None:
        """Add a backward call that has ended; return what adds more that are like it."""
        if self.is_idle:
            return None
        with self.lock:
            row = self._calls.add(call)
            if row.count == call.count and call.site is not None:
                self.source(call.site.file)
            self._counted(row)
            return partial(self._further, row)

    def _further(self, row: FoldedCalls, calls: Sequence[int], ended: float) -> None:
        """Add calls to a row."""
        if self._store is not None and self.is_idle:
            return
        with self.lock:
            row.number = min(row.number, *calls)
            row.add(calls[-1], ended, row.live_bytes, row.figures, len(calls))
            self._calls.changed.add(row.index)
            self._counted(row)

    def _counted(self, row: FoldedCalls) -> None:
        if self._store is None:
            return  # it is written when it is read
        if row.count <= AT_ONCE or monotonic() - self._committed >= WRITE_EVERY:
            self._commit()
        else:
            self._note()

    def _note(self) -> None:
        if self._store is None or self.problem:
            return
        try:
            self._store.note(f"[{self._begun()}]".encode())
        except OSError as error:
            self._fail(error)

    @_while_open
    def finding(self, finding: Finding) -> None:
        """Write a finding, in the place of one with the same cause."""
        place = self._findings.setdefault(finding.cause, len(self._findings))
        self._write("findings", place, dumps(finding))

    @_while_open
    def sample(self, sample: Sample) -> None:
        """Add a point of the memory curve."""
        self._curve.add(sample)

    @_while_open
    def source(self, file: str) -> None:
        """Store a source file once; leave one out that cannot be read."""
        if file in self._sources:
            return
        self._sources.add(file)
        if (text := _source_text(file)) is not None:
            self._write("sources", len(self._sources), pack(dumps([file, text])))

    @_while_open
    def finish(self, outcome: Outcome, summary: Summary) -> None:
        """Write how the run ended, and all that is still waiting."""
        self.follow(lambda: summary)
        self._put("outcome", 0, dumps(replace(outcome, finished=True)))
        self._commit()
        self._summary = None
        if self._store is not None:
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
            if self._store is not None:
                return read_log(self._store.fileno()).recording()
            records = {key: text for key, text in sorted(self._waiting.items()) if text}
            return Log(records).recording()

    @_while_open
    def close(self) -> None:
        """Write what is waiting and let go of the file; later calls do nothing."""
        self._commit()
        self._closed = True
        if self._store is not None:
            self._store.close()

    def _put(self, table: str, key: int, value: str | bytes) -> None:
        if not self.problem:
            self._waiting[table, key] = value.encode() if isinstance(value, str) else value

    def _write(self, table: str, key: int, value: str | bytes) -> None:
        """Put a record in its place, and into the file at once."""
        self._put(table, key, value)
        if self._store is not None:
            self._commit()

    def _commit(self) -> None:
        """Write what has changed."""
        # A destructor that runs in the middle may call us again.
        if self._committing or self.problem:
            return
        self._committing = True
        try:
            self._gather()
            if self._store is None:
                return
            batch, self._waiting = self._waiting, {}
            try:
                if batch:
                    self._store.write(batch)
            except BaseException as error:
                self._waiting = batch | self._waiting
                if not isinstance(error, OSError):
                    raise
                self._fail(error)
            self._note()
        finally:
            self._committing = False
            self._committed = monotonic()

    def _fail(self, error: OSError) -> None:
        why = error.strerror or error
        self.problem = f"{self.path}: the recording ends early, writing it failed: {why}"

    def _gather(self) -> None:
        for index, call in self._calls.take_changed():
            self._put("calls", index, dumps(call))
        for place, run in self._curve.take_changed():
            self._put("timeline", place, dumps(run) if run else b"")
        if self._summary is not None:
            summary = self._summary()
            summary = replace(summary, notes=(*summary.notes, *self._notes()))
            self._put("summary", 0, dumps(summary))

    def _notes(self) -> list[str]:
        counts = {
            "graphs not stored because too many others were": self._refused,
            "backward calls counted only with others of their site": self._calls.mixed,
        }
        return [f"{what}: {number:,}" for what, number in counts.items() if number]


def begun(kind: str, site: Site | None) -> str:
    """Return what is noted of a call while it runs, behind its number."""
    return dumps(BackwardCall(0, kind, site)).removeprefix("[0,").removesuffix("]")


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
