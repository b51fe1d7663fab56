"""Works out the bars of the timeline: when each graph was built, run, freed and destroyed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from gradscope.model import Process, Recording

MAX_LANES = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """The life of one call's graph, in seconds since the run began.

    ``row`` is the index in ``Recording.calls``. The graph is built from ``built`` to ``started``
    and run until ``ended``; its saved tensors are held until ``kept`` (None: the call freed them),
    its nodes are there until ``gone`` (None: not known to be destroyed). torch shows neither of the
    last two for one graph: ``kept`` is the first moment at which all graphs together held less,
    ``gone`` counts destroyed nodes oldest first.
    """

    row: int
    lane: int
    built: float
    started: float
    ended: float
    kept: float | None
    gone: float | None


def by_process(recording: Recording) -> Iterator[tuple[Process, Recording]]:
    """Yield each process and what it did alone; that of a recording of one has no name."""
    if not recording.processes:
        header = recording.header
        clock = header.clock or header.started
        what = ("", header.script, recording.summary, recording.outcome)
        yield Process(*what, pid=header.pid, clock=clock), recording
    for process in recording.processes:
        yield (
            process,
            replace(
                recording,
                header=replace(recording.header, clock=process.clock),
                outcome=process.outcome,
                summary=process.summary,
                calls=tuple(call for call in recording.calls if call.process == process.name),
                findings=tuple(f for f in recording.findings if process.name in f.processes),
                timeline=process.timeline,
            ),
        )


def run_end(recording: Recording) -> float:
    """Return the last moment that the recording knows of, in seconds since the run began."""
    moments = [0.0, *(call.ended for call in recording.calls)]
    moments += [sample.time for sample in recording.timeline]
    if recording.outcome.ended:
        began = recording.header.clock or recording.header.started
        moments.append(recording.outcome.ended - began)
    return max(moments)


def lifetimes(recording: Recording) -> tuple[Bar, ...]:
    """Return one bar for each row of calls, packed into as few lanes as keep them apart."""
    end = run_end(recording)
    gone = _destroyed(recording, end)
    ends = sorted(call.ended for call in recording.calls)
    lane_ends: list[float] = []
    lane_of: dict[int | None, int] = {}
    bars: list[Bar] = []
    for row, call in enumerate(recording.calls):
        ended, kept = call.ended, None
        if call.count > 1:
            ended = _folded_until(recording, row, end)
        elif call.retained_bytes:
            kept = _kept_until(recording, row, end)
        if call.graph is not None and call.graph in lane_of:
            built, lane = call.started, lane_of[call.graph]
        else:
            built = call.started
            if call.count == 1 and call.parent is None:  # built since the call before ended
                before = bisect_right(ends, built)
                built = ends[before - 1] if before else 0.0
            lane = lane_of[call.graph] = _free_lane(lane_ends, built)
        lane_ends[lane] = max(lane_ends[lane], ended, kept or 0.0)
        bars.append(Bar(row, lane, built, call.started, ended, kept, gone[row]))
    return tuple(bars)


def _folded_until(recording: Recording, row: int, end: float) -> float:
    """Return when the first call started that came after the last of a folded row's calls."""
    last = recording.calls[row].last_number
    starts = (later.started for later in recording.calls[row + 1 :] if later.number > last)
    return max(recording.calls[row].ended, min(starts, default=end))


def _free_lane(lane_ends: list[float], start: float) -> int:
    """Return the first lane that is free at ``start``, or free soonest if there are too many."""
    if len(lane_ends) < MAX_LANES and all(end > start for end in lane_ends):
        lane_ends.append(start)
    free = (lane for lane, end in enumerate(lane_ends) if end <= start)
    return next(free, lane_ends.index(min(lane_ends)))


def _kept_until(recording: Recording, row: int, end: float) -> float:
    """Return when the saved tensors that a call retained are run again, or known to be gone."""
    call = recording.calls[row]
    later = recording.calls[row + 1 :] if call.graph is not None else ()
    again = (other.started for other in later if other.graph == call.graph)
    samples = recording.timeline
    after = samples[bisect_right(samples, call.ended, key=lambda sample: sample.time) :]
    less = (sample.time for sample in after if sample.live_bytes < call.retained_bytes)
    return min(end, next(again, end), next(less, end))


def _destroyed(recording: Recording, end: float) -> list[float | None]:
    """Return when as many nodes were destroyed as had been built up to and with each row."""
    calls = recording.calls
    destroyed = list(accumulate(call.nodes_destroyed * call.count for call in calls))
    moments: list[float | None] = []
    built = 0
    for call in calls:
        built += call.nodes_built * call.count
        later = bisect_right(destroyed, built - 1)
        if not call.nodes_built or call.count > 1:
            moments.append(None)
        elif later < len(calls):
            moments.append(max(calls[later].started, call.ended))
        else:
            moments.append(end if recording.summary.nodes_destroyed >= built else None)
    return moments
