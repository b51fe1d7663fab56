"""The trace in Chrome's format: each event has what its kind needs, on the clock of torch's profiler."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from canned import RECORDINGS

import gradscope
from gradscope.model import Recording
from gradscope.record.processes import merged
from gradscope.render.machine.trace import to_trace

NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "b": {"name", "cat", "id", "pid", "tid", "ts", "args"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
}
"""What the documents of the Trace Event Format ask of each kind of event."""

CANNED = RECORDINGS["canned"]


def events_of(recording: Recording) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(to_trace(recording))["traceEvents"]
    return found


def of_kind(kind: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == kind]


@pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
def test_each_event_has_what_its_kind_needs(recording: Recording) -> None:
    begun: Counter[str] = Counter()
    for event in events_of(recording):
        assert NEEDED[event["ph"]] <= event.keys(), event
        assert isinstance(event["pid"], int)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        begun[event.get("id", "")] += {"b": 1, "e": -1}.get(event["ph"], 0)
    assert not +begun


def test_lives_of_graphs_end_after_they_begin() -> None:
    events = events_of(CANNED)
    ends = {event["id"]: event["ts"] for event in of_kind("e", events)}
    begins = of_kind("b", events)
    graphs = [event for event in begins if event["name"].startswith("graph of call ")]
    assert len(graphs) == len(CANNED.calls)
    assert all(event["ts"] <= ends[event["id"]] for event in begins)


@pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
def test_calls_on_one_track_lie_within_each_other_or_apart(recording: Recording) -> None:
    """What the trace processor asks of complete events: it drops one that overlaps in part."""
    calls = of_kind("X", events_of(recording))
    spans = sorted((call["tid"], call["ts"], -call["ts"] - call["dur"]) for call in calls)
    around: list[tuple[int, float]] = []
    for track, begun, ended in spans:
        while around and (around[-1][0] != track or around[-1][1] <= begun):
            around.pop()
        assert not around or -ended <= around[-1][1]
        around.append((track, -ended))


def test_many_calls_of_which_little_is_known_are_one_span_beside_the_others() -> None:
    names = [event["name"] for event in of_kind("b", events_of(CANNED))]
    assert "1,000 calls of backward loss_d" in names


def test_findings_and_the_memory_curve_are_in_it() -> None:
    events = events_of(CANNED)
    assert [event["name"][:5] for event in of_kind("i", events)] == [
        f.code for f in CANNED.findings
    ]
    assert len(of_kind("C", events)) == len(CANNED.timeline)


def test_processes_are_labelled_and_on_one_clock() -> None:
    one = replace(CANNED, header=replace(CANNED.header, rank=0, pid=7, clock=1.5e9))
    other = replace(CANNED, header=replace(CANNED.header, rank=1, pid=8, clock=1.5e9 + 2))
    every = events_of(merged([one, other]))
    labels = {e["pid"]: e["args"]["labels"] for e in every if e["name"] == "process_labels"}
    assert labels == {7: "rank 0", 8: "rank 1"}
    events = of_kind("X", every)
    first = {pid: next(e["ts"] for e in events if e["pid"] == pid) for pid in (7, 8)}
    assert first[8] - first[7] == pytest.approx(2e6)


def test_calls_lie_over_what_the_profiler_saw_of_them(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with gradscope.watch() as scope, torch.profiler.profile() as profiler:
        for _ in range(3):
            net(torch.ones(4, 8)).pow(2).mean().backward()
    profiler.export_chrome_trace(str(tmp_path / "profile.json"))
    profile = json.loads((tmp_path / "profile.json").read_text())
    ours = json.loads(to_trace(scope.recording()))
    assert ours["baseTimeNanoseconds"] == profile.get(
        "baseTimeNanoseconds", ours["baseTimeNanoseconds"]
    )
    ran = [e["ts"] for e in profile["traceEvents"] if e["name"].startswith("autograd::engine")]
    calls = of_kind("X", ours["traceEvents"])
    first, last = calls[0]["ts"], max(call["ts"] + call["dur"] for call in calls)
    slack = 500_000  # microseconds: a busy machine may stop between the reads of two clocks
    assert ran
    assert all(first - slack <= time <= last + slack for time in ran)
