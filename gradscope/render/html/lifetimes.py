"""Works out when the graph of each call was built, run, freed and destroyed: the bars of the timeline."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from gradscope.model import Recording

MAX_LANES = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """The life of one call's graph, in seconds since the run began; ``row`` is the index in ``Recording.calls``.

    Built from ``built`` to ``started``, run until ``ended``, saved tensors held until ``kept`` (None: the call freed
    them), nodes there until ``gone`` (None: not known to be destroyed). torch tells neither of the last two
    for one graph: ``kept`` is the first moment at which all graphs together held less, ``gone`` counts destroyed nodes
    oldest first.
    """

    row: int
    lane: int
    built: float
    started: float
    ended: float
    kept: float | None
    gone: float | None


def run_end(recording: Recording) -> float:
    """The last moment that the recording knows of, in seconds since the run began."""
    last = max((call.ended for call in recording.calls), default=0.0)
    last = max(last, max((sample.time for sample in recording.timeline), default=0.0))
    return max(
        last, recording.outcome.ended - recording.header.started if recording.outcome.ended else 0.0
    )


def lifetimes(recording: Recording) -> tuple[Bar, ...]:
    """One bar for each row of calls, packed into as few lanes as keep them apart."""
    calls = recording.calls
    end = run_end(recording)
    gone = _destroyed(recording, end)
    lane_ends: list[float] = []
    lane_of_graph: dict[int, int] = {}
    bars: list[Bar] = []
    for row, call in enumerate(calls):
        ended = call.ended if call.count == 1 else _folded_until(recording, row, end)
        again = call.graph is not None and call.graph in lane_of_graph
        built = call.started if again else _built_from(recording, row)
        kept = (
            _kept_until(recording, row, ended, end)
            if call.retained_bytes and call.count == 1
            else None
        )
        lane = (
            lane_of_graph[call.graph]
            if again and call.graph is not None
            else _free_lane(lane_ends, built)
        )
        lane_ends[lane] = max(lane_ends[lane], ended, kept or 0.0)
        if call.graph is not None:
            lane_of_graph[call.graph] = lane
        bars.append(Bar(row, lane, built, call.started, ended, kept, gone[row]))
    return tuple(bars)


def _folded_until(recording: Recording, row: int, end: float) -> float:
    """A folded row lasts until the first call that came after the last of its calls."""
    last = recording.calls[row].last_number
    starts = (later.started for later in recording.calls[row + 1 :] if later.number > last)
    return max(recording.calls[row].ended, min(starts, default=end))


def _built_from(recording: Recording, row: int) -> float:
    """When the call before ended: what it left behind was there, what this call runs was built since."""
    call = recording.calls[row]
    if call.count > 1 or call.parent is not None:
        return call.started
    before = recording.calls[row - 1] if row else None
    if before is not None and before.number == call.number - 1:
        return min(before.ended, call.started)
    samples = recording.timeline
    at = bisect_left(samples, call.number - 1, key=lambda sample: sample.call)
    return min(samples[at].time if row and at < len(samples) else 0.0, call.started)


def _free_lane(lane_ends: list[float], start: float) -> int:
    """The first lane that is free at ``start``; when there are too many, the one that is free soonest."""
    for lane, end in enumerate(lane_ends):
        if end <= start:
            return lane
    if len(lane_ends) < MAX_LANES:
        lane_ends.append(start)
        return len(lane_ends) - 1
    return lane_ends.index(min(lane_ends))


def _kept_until(recording: Recording, row: int, ended: float, end: float) -> float:
    """When the saved tensors that a retaining call left are run again, or known to be gone."""
    call = recording.calls[row]
    moments = [end]
    if call.graph is not None:
        for later in recording.calls[row + 1 :]:
            if later.graph == call.graph:
                moments.append(later.started)
                break
    samples = recording.timeline
    for sample in samples[bisect_right(samples, ended, key=lambda sample: sample.time) :]:
        if sample.live_bytes < call.retained_bytes:
            moments.append(sample.time)
            break
    return min(moments)


def _destroyed(recording: Recording, end: float) -> list[float | None]:
    """For each row the moment by which as many nodes were destroyed as had been built up to and with it."""
    calls = recording.calls
    totals: list[int] = []
    total = 0
    for call in calls:
        total += call.nodes_destroyed * call.count
        totals.append(total)
    built = 0
    moments: list[float | None] = []
    for call in calls:
        built += call.nodes_built * call.count
        later = bisect_right(totals, built - 1)
        if not call.nodes_built or call.count > 1:
            moments.append(None)
        elif later < len(calls):
            moments.append(max(calls[later].started, call.ended))
        else:
            moments.append(end if recording.summary.nodes_destroyed >= built else None)
    return moments
