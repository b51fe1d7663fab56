"""Books backward calls that have ended: each in a record, but of guarded ones many in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from gradscope.collect.calls import Call, figures_of
from gradscope.collect.habits import Habit
from gradscope.collect.ledger import LOOKS
from gradscope.collect.shapes import Shape
from gradscope.collect.state import State
from gradscope.model import BackwardCall, Sample
from gradscope.record.writer import Like

_SAMPLE_EVERY = 0.01  # seconds between points of the memory curve
_REGROUP_EVERY = 0.1  # seconds; calls of one habit may differ in size
_MOST_ROWS = 64


class Writing(Protocol):
    """The part of a watch that takes calls, and points of the memory curve."""

    def call(self, call: BackwardCall, signature: Any) -> Sequence[Like]: ...  # noqa: D102
    def sample(self, sample: Sample) -> None: ...  # noqa: D102


class Books:
    """Writes what calls found, freed and kept, and from time to time the memory that is held."""

    def __init__(self, state: State, writing: Writing) -> None:
        self._state = state
        self._writing = writing
        self._rows: dict[Shape | Habit, Sequence[Like]] = {}
        self._grouped = 0.0
        self._sampled = -1.0
        self._built_before = self._destroyed_before = 0

    def call(self, call: Call, error: BaseException | None) -> BackwardCall:
        """Complete the record of a call that has ended, and write it."""
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
        self._sample(call, alike=call.guarded)
        self._writing.call(record, call.shape.number)
        return record

    def guarded(self, call: Call) -> None:
        """Write a guarded call in the row of those like it."""
        self._end(call)
        self._sample(call, alike=True)
        if call.ended - self._grouped > _REGROUP_EVERY or len(self._rows) > _MOST_ROWS:
            self._grouped = call.ended
            self.regroup()
        key: Shape | Habit = call.habit if call.estimated else call.shape
        rows = self._rows.get(key, ())
        if rows and all(row.takes(call.number) for row in rows):
            figures = figures_of(call)
            for row in rows:
                row.add(call.number, call.ended, call.live_bytes, figures)
        else:
            self._rows[key] = self._writing.call(call.record, call.shape.number)

    def regroup(self) -> None:
        """Begin a new row with the next call of each kind."""
        self._rows.clear()

    def _end(self, call: Call) -> None:
        """Note what there was when a call ended, and begin to count anew."""
        state, ledger = self._state, self._state.ledger
        built, destroyed = state.generations.built, state.census.destroyed
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
