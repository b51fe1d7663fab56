"""The timeline as a trace in Chrome's format, on the clock of torch's profiler.

Perfetto opens it. Its events can be put among those of a trace that ``torch.profiler`` has written
of the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from gradscope.model import BackwardCall, Finding, Process, Recording
from gradscope.render.lifetimes import by_process, lifetimes
from gradscope.render.machine.json import dumped
from gradscope.units import counted, nbytes

TraceEvent = dict[str, Any]

_BASE_STEP = 7_889_238
"""Seconds: torch's profiler counts from the last multiple of this since the epoch."""

_FIRST_TRACK = 1_000_000
"""gradscope's tracks have numbers from here on, where the system has no threads."""


def to_trace(recording: Recording) -> str:
    """Return the trace as JSON: calls, lives of graphs, findings, and bytes held by graphs."""
    parts = list(by_process(recording))
    base = int(min(process.clock for process, _ in parts)) // _BASE_STEP * _BASE_STEP
    events = [event for process, own in parts for event in _Track(process, own, base).events()]
    whole = {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base * 10**9,
        "traceEvents": events,
    }
    return dumped(whole, separators=(",", ":")) + "\n"


class _Track:
    """The events of one process."""

    def __init__(self, process: Process, recording: Recording, base: int) -> None:
        self._recording = recording
        self._pid, self._name = process.pid, process.name
        self._zero = process.clock - base
        threads = dict.fromkeys(call.thread for call in recording.calls)
        self._tracks = {name: _FIRST_TRACK + number for number, name in enumerate(threads)}

    def events(self) -> Iterator[TraceEvent]:
        """Yield all events, the names of the tracks first."""
        for name, track in self._tracks.items():
            yield self._event(
                "M", "thread_name", 0.0, tid=track, args={"name": f"gradscope: {name}"}
            )
        if self._name:
            yield self._event("M", "process_labels", 0.0, args={"labels": self._name})
        for call, number, started, ended in self._runs():
            yield from self._call(call, number, started, ended)
        yield from self._graphs()
        for sample in self._recording.timeline:
            held = {"held by graphs": sample.live_bytes, "released, still held": sample.held_bytes}
            yield self._event("C", "bytes saved", sample.time, args=held)
        starts = {number: started for _, number, started, _ in self._runs()}
        for finding in self._recording.findings:
            yield self._finding(finding, starts.get(finding.backward_call, 0.0))

    def _event(self, kind: str, name: str, time: float, **more: Any) -> TraceEvent:
        microseconds = round((self._zero + time) * 1e6, 3)
        return {"ph": kind, "name": name, "pid": self._pid, "ts": microseconds, **more}

    def _runs(self) -> Iterator[tuple[BackwardCall, int, float, float]]:
        """Yield each call whose time is known, and what is left of rows as one.

        A row tells when its first call began and its last one ended; the memory curve has a point
        before and after each of many calls.
        """
        timeline = self._recording.timeline
        known = {
            after.call: (before.time, after.time)
            for before, after in pairwise(timeline)
            if before.call == after.call - 1
        }
        for call in self._recording.calls:
            if call.count == 1:
                yield call, call.number, call.started, call.ended
                continue
            step = max(1, (call.last_number - call.number) // (call.count - 1))
            numbers = range(call.number, call.last_number + 1, step)
            seen = [number for number in numbers if number in known]
            for number in seen or [call.number]:
                yield call, number, *known.get(number, (call.started, call.ended))

    def _call(
        self, call: BackwardCall, number: int, started: float, ended: float
    ) -> Iterator[TraceEvent]:
        """Yield a call; calls of which only the first start and the last end are known go beside
        the others, as on one track each must lie within another or apart from it.
        """
        alike = call.count > 1 and ended == call.ended and started == call.started
        names = ", ".join(root.name for root in call.roots if root.name)
        name = f"{'autograd.grad' if call.kind == 'grad' else 'backward'} {names}".rstrip()
        args = {
            "call": f"{call.number} to {call.last_number}" if alike else number,
            "line": call.site.place if call.site else "",
            "nodes run": call.nodes_run,
            "saved": nbytes(call.saved_bytes),
            "freed": nbytes(call.freed_bytes),
            "retained": nbytes(call.retained_bytes),
        }
        if call.exception:
            args["raised"] = call.exception
        more: TraceEvent = {"tid": self._tracks[call.thread], "cat": "gradscope"}
        if alike:
            more["id"] = f"{self._pid}.calls.{number}"
            name = f"{call.count:,} calls of {name}"
            yield self._event("b", name, started, args=args, **more)
            yield self._event("e", name, ended, **more)
        else:
            duration = round((ended - started) * 1e6, 3)
            yield self._event("X", name, started, dur=duration, args=args, **more)

    def _graphs(self) -> Iterator[TraceEvent]:
        for call, bar in zip(self._recording.calls, lifetimes(self._recording), strict=True):
            until = max(bar.ended, bar.kept or 0.0, bar.gone or 0.0)
            many = f" and {call.count - 1:,} like it" if call.count > 1 else ""
            name = f"graph of call {call.number:,}{many}: {counted(call.nodes, 'node')}"
            same: TraceEvent = {"cat": "gradscope", "id": f"{self._pid}.{bar.row}"}
            same["tid"] = self._tracks[call.thread]
            yield self._event(
                "b", name, bar.built, args={"saved": nbytes(call.saved_bytes)}, **same
            )
            yield self._event("e", name, until, **same)

    def _finding(self, finding: Finding, time: float) -> TraceEvent:
        args = {"line": finding.site.place if finding.site else "", "message": finding.message}
        name = f"{finding.code} {finding.name}"
        return self._event("i", name, time, s="p", tid=_FIRST_TRACK, cat="gradscope", args=args)
