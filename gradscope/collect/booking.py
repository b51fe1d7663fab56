"""Books backward calls that have ended: each in a record, but those on recognized graphs many in
one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from gradscope.collect.calls import FIGURES, Call, figures_of, record_of
from gradscope.collect.habits import Habit
from gradscope.collect.ledger import LOOKS
from gradscope.collect.shapes import Shape
from gradscope.collect.state import State
from gradscope.model import BackwardCall, Sample

_SAMPLE_EVERY = 0.01  # seconds between points of the memory curve
_MOST_ROWS = 64


class Writing(Protocol):
    """The part of a watch that takes calls, which wait so many seconds at most, and points of the
    memory curve.
    """

    @property
    def gather_every(self) -> float: ...  # noqa: D102
    def call(self, call: BackwardCall, signature: Any) -> None: ...  # noqa: D102
    def sample(self, sample: Sample) -> None: ...  # noqa: D102


class _Row:
    """Calls that wait to be written: on graphs of one shape, or on like ones at one place."""

    __slots__ = ("count", "figures", "first", "last", "shape")

    def __init__(self, call: Call) -> None:
        self.shape = call.shape
        self.first = self.last = call
        self.count = 1
        self.figures = call.figures

    def add(self, call: Call) -> None:
        self.last = call
        self.count += 1
        if call.figures != self.figures:
            self.figures = tuple(map(max, call.figures, self.figures))

    def record(self) -> BackwardCall:
        last = self.last
        return record_of(
            self.first,
            **dict(zip(FIGURES, self.figures, strict=True)),
            live_bytes=last.live_bytes,
            ended=last.ended,
            count=self.count,
            last_number=last.number,
        )


class Books:
    """Writes what calls found, freed and kept, and from time to time the memory that is held."""

    def __init__(self, state: State, writing: Writing) -> None:
        self._state = state
        self._writing = writing
        self._rows: dict[Shape | Habit, _Row] = {}
        self._every = writing.gather_every
        self._written = 0.0
        self._sampled = -1.0
        self._built_before = self._destroyed_before = 0

    def call(self, call: Call, error: BaseException | None) -> BackwardCall:
        """Complete the record of a call that has ended, and write it."""
        self.flush()
        self._end(call)
        call.record = record = replace(
            call.record,
            freed_tensors=call.freed_tensors,
            freed_bytes=call.freed_bytes,
            returned_bytes=call.returned_bytes,
            retained_bytes=max(0, call.record.saved_bytes - call.freed_bytes),
            live_bytes=call.live_bytes,
            peak_bytes=call.peak_bytes,
            nodes_built=call.nodes_built,
            nodes_destroyed=call.nodes_destroyed,
            ended=call.ended,
            exception=None if error is None else f"{type(error).__name__}: {error}",
            last_number=call.number,
        )
        self._writing.call(record, call.shape.number)
        self._sample(call, alike=call.repeat is not None)
        return record

    def repeat(self, call: Call) -> None:
        """Add a call on a recognized graph to those like it that wait to be written."""
        repeat = call.repeat
        assert repeat is not None
        self._end(call)
        call.figures = figures_of(call, repeat)
        exact = repeat.estimate is None
        key: Shape | Habit = repeat.shape if exact else call.habit
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= _MOST_ROWS:
                self.flush()
            self._rows[key] = _Row(call)
        else:
            row.add(call)
        if call.ended - self._written > self._every:
            self.flush()
        self._sample(call, alike=True)

    def flush(self) -> None:
        """Write the calls that wait."""
        if self._rows:
            rows, self._rows = self._rows, {}
            for row in rows.values():
                self._writing.call(row.record(), row.shape.number)
        self._every = self._writing.gather_every
        self._written = self._state.elapsed()

    def _end(self, call: Call) -> None:
        """Note what there was when a call ended, and begin to count anew."""
        state, ledger = self._state, self._state.ledger
        built, destroyed = state.nodes_built, state.census.destroyed
        call.ended = state.elapsed()
        call.live_bytes, call.peak_bytes = ledger.live_bytes, ledger.peak_bytes
        call.nodes_built = built - self._built_before
        call.nodes_destroyed = destroyed - self._destroyed_before
        self._built_before, self._destroyed_before = built, destroyed
        ledger.highest_bytes = max(ledger.highest_bytes, ledger.peak_bytes)
        ledger.peak_bytes = ledger.live_bytes
        state.saving.looks_left = LOOKS

    def _sample(self, call: Call, *, alike: bool) -> None:
        """Write two points of the memory curve, from time to time."""
        if call.ended - self._sampled > _SAMPLE_EVERY:
            self._sampled = call.ended
            held = call.freed_bytes - call.returned_bytes
            before = Sample(call.started, call.peak_bytes, 0, call.number - 1, alike)
            self._writing.sample(before)
            self._writing.sample(Sample(call.ended, call.live_bytes, held, call.number, alike))
