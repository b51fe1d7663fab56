"""What two rehearsals trained is compared by leaf, step and loss; the time for all trials is shared."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from canned import small_finding

from gradscope.fixing import verify
from gradscope.fixing.instrumentation import Span
from gradscope.fixing.patch import Patch, Source, apply, split
from gradscope.fixing.plan import plan
from gradscope.fixing.rehearsal import Event, Line, Trace
from gradscope.fixing.runs import Bounds, Program, Run, read_notes, told_place
from gradscope.fixing.training import Comparison, owners
from gradscope.model import (
    Edit,
    Fix,
    FixKind,
    Header,
    Recording,
    Site,
)

FILE, LOSSES = "f.py", "losses.py"
G, D, E = range(3)
"""The leaves `G.weight`, `D.weight` and `D.bias`; their nodes have the same numbers."""


class Rehearsed:
    """A rehearsal of two optimizers, each of which zeroes what it steps before the next call."""

    def __init__(self) -> None:
        self.after: list[list[int]] = [[], [], []]
        self.made = [-1, -1, -1]
        self.places: list[Span] = []
        self.events: list[Event] = []
        self.stepped: tuple[int, ...] = ()

    def node(self, made: int, *after: int) -> int:
        """A node that a line has made."""
        self.after.append([*after])
        self.made.append(len(self.places))
        self.places.append(Span(LOSSES, made, 0, made, 9))
        return len(self.after) - 1

    def call(self, line: int, *after: int, fails: bool = False) -> int:
        """A call of a loss that a line of the same number has made."""
        root = self.node(line, *after)
        stale = ((root, -1, -1),) if fails else ()
        self.run((FILE, line), root=root, stale=stale)
        return root

    def run(
        self, *line: tuple[str, int], root: int, stale: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        at = Span(*line[0], 0, line[0][1], 9)
        facts = {"stale": tuple(stale), "cleared": self.stepped, "nodes": len(self.after)}
        self.events.append(Event("call", at, (root,), stack=line, **facts))  # type: ignore[arg-type]
        self.stepped = ()

    def step(self, optimizer: int, *leaves: int, gradient: float = 1) -> None:
        line = 90 + optimizer
        at, stack = Span(FILE, line, 0, line, 9), ((FILE, line),)
        sums = ((gradient, max(gradient, 0)),) * len(leaves)
        event = Event("step", at, leaves=leaves, optimizer=optimizer, stack=stack, gradients=sums)
        self.events.append(event)
        self.stepped = (*self.stepped, *leaves)

    @property
    def record(self) -> Trace:
        size = len(self.after)
        return Trace(
            places=self.places, kinds={}, after=self.after, made=self.made,
            saves=[True] * size, leaf={G: G, D: D, E: E}, identities={},
            added={}, events=self.events, leaves=["G.weight", "D.weight", "D.bias"],
            owners={G: (0, 0), D: (1, 0), E: (1, 1)}, optimizers=["Adam", "SGD"], ended="end",
        )  # fmt: skip


def differences(base: Rehearsed, after: Rehearsed) -> list[str]:
    found = Comparison(base.record, after.record, ())
    return [f"{d.change} {owners(d.keys, found)} by {d.loss[0][1]}" for d in found.differences]


def rounds(*, fails: bool = False, trains: Sequence[int] = (D, E)) -> Rehearsed:
    """Two rounds: line 10 trains G, line 20 trains D."""
    run = Rehearsed()
    for _ in range(2):
        run.call(10, G)
        run.step(0, G)
        run.call(20, *trains, fails=fails)
        run.step(1, *trains)
    return run


def test_notes_that_were_cut_off_are_read_up_to_there(tmp_path: Path) -> None:
    rows = [[[[FILE, 10]], 2.0], [[[FILE, 20], [FILE, 3]], 1.0], [[[FILE, 10]], 1.5]]
    file = tmp_path / "notes"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '[[["f.')
    assert read_notes(file) == {((FILE, 10),): [2.0, 1.5], ((FILE, 20), (FILE, 3)): [1.0]}
    assert read_notes(Path("/nowhere")) == {}


def test_a_loss_is_at_home_with_the_optimizers_that_step_next() -> None:
    found = Comparison(rounds().record, rounds().record, ())
    assert found.homes == {((FILE, 10),): {0}, ((FILE, 20),): {1}}


def test_what_is_trained_as_before_differs_in_nothing() -> None:
    assert differences(rounds(fails=True), rounds()) == []
    assert differences(rounds(), rounds()) == []


def test_what_gets_no_gradient_any_more_is_untrained() -> None:
    assert differences(rounds(fails=True), rounds(trains=())) == ["untrained `D.*` by 20"]
    assert differences(rounds(), rounds(trains=[E])) == ["untrained `D.weight` by 20"]


@pytest.mark.parametrize(
    ("before", "later", "fails", "equal"),
    [
        ((1, 1), (1, 1), False, True),
        ((1, 1), (1 + 1e-7, 1), False, True),  # rounding
        ((1, 1), (1, 2), False, False),
        ((1, 1), (math.nan, 1), False, True),  # not known
        ((1, 1), (1, 2), True, True),  # the second step differentiated what had been changed
    ],
)
def test_gradients_are_compared_up_to_where_the_program_fails(
    before: tuple[float, float], later: tuple[float, float], fails: bool, equal: bool
) -> None:
    runs = Rehearsed(), Rehearsed()
    for run, (first, second) in zip(runs, (before, later), strict=True):
        run.call(10, G)
        run.step(0, G, gradient=first)
        run.call(20, D, fails=fails and run is runs[0])
        run.step(1, D, gradient=second)
    assert Comparison(runs[0].record, runs[1].record, ()).is_equal is equal


@pytest.mark.parametrize("frees", [True, False])
def test_a_graph_is_kept_if_no_later_call_frees_it(frees: bool) -> None:
    run = Rehearsed()
    part = run.node(5, D)
    for line in (10, 20):
        run.call(line, part)
        run.events[-1] = run.events[-1]._replace(keep=line == 10 or not frees)
    assert Comparison(rounds().record, run.record, ()).keeps is not frees


def test_a_gradient_that_comes_in_or_goes_is_told() -> None:
    late = Rehearsed()
    late.call(10, G)
    late.call(20, G, D, E)
    late.step(0, G)
    late.step(1, D, E)
    assert differences(rounds(fails=True), late) == ["gained `G.weight` by 20"]

    def both(*first: int) -> Rehearsed:
        run = Rehearsed()
        run.call(10, G, *first)
        run.call(20, D, E)
        run.step(1, D, E)
        return run

    assert differences(both(D, E), both()) == ["lost `D.*` by 10"]


def test_a_step_that_is_not_come_to_trains_nothing() -> None:
    ends = Rehearsed()
    ends.call(10, G)
    ends.step(0, G)
    ends.call(20, D, E)
    ends.call(20, D, E)
    assert differences(rounds(), ends) == ["untrained `D.*` by 20"]


def test_a_gradient_through_a_carried_state_is_neither_lost_nor_gained() -> None:
    def run(*, is_cut: bool, fails: bool = False) -> Rehearsed:
        run, state = Rehearsed(), G
        for number in range(2):
            after = (D, state) if number == 0 or not is_cut else (D,)
            state = run.call(10, *after, fails=fails and number == 1)
            run.step(0, *((G,) if number == 0 or not is_cut else ()))
            run.step(1, D)
        return run

    assert differences(run(is_cut=False, fails=True), run(is_cut=True)) == []
    assert differences(run(is_cut=False, fails=True), run(is_cut=False)) == []


def test_a_loss_that_trains_by_fewer_ways_before_the_failure_gives_another_gradient() -> None:
    def run(*, ways: int, fails: bool = False) -> Rehearsed:
        run = Rehearsed()
        run.call(10, *(run.node(9, G) for _ in range(ways)))
        run.step(0, G)
        run.call(20, D, E, fails=fails)
        run.step(1, D, E)
        return run

    assert differences(run(ways=2, fails=True), run(ways=1)) == ["other `G.weight` by 10"]
    assert differences(run(ways=2, fails=True), run(ways=2)) == []
    assert differences(run(ways=2), run(ways=1)) == []  # no call failed


def test_a_fix_takes_what_was_built_once_and_nothing_that_a_failing_call_could_keep() -> None:
    def run(own: int, *, is_cut: bool) -> Rehearsed:
        run = Rehearsed()
        once = run.node(8, G)
        for _ in range(3):
            run.call(10, *(run.node(9, G) for _ in range(own)), *([] if is_cut else [once]))
            run.step(0, G)
        return run

    assert differences(run(2, is_cut=False), run(2, is_cut=True)) == []
    assert differences(run(2, is_cut=False), run(1, is_cut=True)) == ["other `G.weight` by 10"]


TEXT = "a.backward()\nx = 1\nb.backward()\ny = 2\n"


def changed(*edits: tuple[int, str]) -> Patch:
    return apply(Source(FILE, split(TEXT)), [Edit(FILE, *edit) for edit in edits])


def losses(run: Rehearsed, calls: dict[Line, str]) -> Rehearsed:
    """A run with calls of the losses `a`, which trains G, and `b`, which trains D."""
    for line, names in calls.items():
        parts = [run.node("abc".index(name) + 1, {"a": G, "b": D, "c": E}[name]) for name in names]
        run.run(*line, root=parts[0] if len(parts) == 1 else run.node(99, *parts))
    run.step(0, G)
    run.step(1, D, E)
    return run


@pytest.mark.parametrize(
    ("edits", "runs"),
    [
        ([(2, "x = 2")], {1: "a", 3: "b"}),
        ([(1, ""), (3, "(a + b).backward()")], {2: "ab"}),
        ([(1, "(a + b).backward()"), (3, "")], {1: "ab"}),
        ([(1, ""), (4, "y = 2\na.backward()")], {2: "b", 4: "a"}),
        ([(1, "a.backward(retain_graph=True)")], {1: "a", 3: "b"}),
        ([(2, "c.backward()")], {1: "a", 2: "c", 3: "b"}),
    ],
)
def test_calls_stand_for_the_losses_that_they_are_made_of(
    edits: list[tuple[int, str]], runs: dict[int, str]
) -> None:
    base = losses(Rehearsed(), {((FILE, 1),): "a", ((FILE, 3),): "b"})
    fixed = losses(Rehearsed(), {((FILE, line),): names for line, names in runs.items()})
    found = Comparison(base.record, fixed.record, [changed(*edits)])
    trained = {key: {line[0][1] for line in lines} for key, lines in found.trained.items()}
    new = {(1, 1, ""): {2}} if "c" in runs.values() else {}
    assert trained == {(0, 0, ""): {1}, (1, 0, ""): {3}} | new


def test_of_a_sum_each_loss_trains_what_it_leads_to() -> None:
    base = losses(Rehearsed(), {((FILE, 1),): "a", ((FILE, 3),): "b"})
    fixed = losses(Rehearsed(), {((FILE, 2),): "ab"})
    edits = [changed((1, ""), (3, "(a + b).backward()"))]
    found = Comparison(base.record, fixed.record, edits)
    assert found.differences == ()
    assert {key: {line[0][1] for line in lines} for key, lines in found.trained.items()} == {
        (0, 0, ""): {1},
        (1, 0, ""): {3},
    }


def test_a_loss_that_two_lines_run_backward_is_one() -> None:
    base, once = Rehearsed(), Rehearsed()
    for run, lines in ((base, (1, 3)), (once, (3,))):
        root = run.node(50, G)
        for line in lines:
            run.run((FILE, line), root=root)
        run.step(0, G)
    found = Comparison(base.record, once.record, [changed((1, "pass"))])
    assert found.trained == {(0, 0, ""): {((FILE, 1),)}}
    assert found.differences == ()


def test_losses_that_their_lines_compute_are_known_by_what_is_there_of_them() -> None:
    def run(*lines: int) -> Rehearsed:
        run = Rehearsed()
        shared = run.node(50, G)
        for line in lines:
            roots = [run.node(line, shared, D) for _ in range(2 // len(lines))]
            run.places[-len(roots) :] = [Span(FILE, line, 0, line, 9)] * len(roots)
            run.run((FILE, line), root=roots[0] if len(roots) == 1 else run.node(99, *roots))
        run.step(0, G)
        run.step(1, D)
        return run

    edits = [changed((1, "(a() + b()).backward()"), (3, "pass"))]
    assert Comparison(run(1, 3).record, run(1).record, edits).differences == ()
    assert differences(run(1, 3), run(1, 3)) == []


def test_a_function_for_any_loss_is_another_line_for_each_caller() -> None:
    first, second = (("lib.py", 5), (FILE, 1)), (("lib.py", 5), (FILE, 3))
    base = losses(Rehearsed(), {first: "a", second: "b"})
    after: dict[Line, str] = {(("lib.py", 5), (FILE, 2)): "b", (("lib.py", 5), (FILE, 4)): "a"}
    moved = changed((1, ""), (4, "y = 2\na.backward()"))
    found = Comparison(base.record, losses(Rehearsed(), after).record, [moved])
    assert found.trained == {(0, 0, ""): {first}, (1, 0, ""): {second}}
    old = {first, second}
    assert {told_place(line, old) for line in old} == {(FILE, 1), (FILE, 3)}
    assert told_place(first[:1], {first[:1]}) == ("lib.py", 5)


def test_no_run_is_begun_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / FILE
    file.write_text(TEXT)
    fixes = [Fix(FixKind.OTHER, "m", (Edit(str(file), 2, f"x = {n}"),)) for n in (2, 3, 4)]
    site, alternatives = Site(str(file), 1), tuple(fixes[1:])
    finding = small_finding(site=site, fix=fixes[0], alternatives=alternatives)
    recording = Recording(
        Header("", "", "", "f.py", cwd=str(tmp_path)),
        findings=(finding,),
        sources={str(file): TEXT},
    )
    clock = [0.0]
    given: list[float] = []

    def run(program: Program, changes: object, bounds: Bounds) -> Run:
        given.append(bounds.seconds)
        clock[0] += 40
        return Run(replace(recording, findings=(finding,)), (), 0, "")

    def rehearse(program: Program, bounds: Bounds, *changes: object) -> Trace:
        given.append(bounds.seconds)
        clock[0] += 10
        return rounds().record

    monkeypatch.setattr(Program, "run", run)
    monkeypatch.setattr(Program, "rehearse", rehearse)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    trial = verify.try_out(plan(recording), recording.header, Bounds(5, 100), lambda doing: None)
    assert given == [50, 30, 25, 5]
    assert [one.verdict is None for one in trial.tried] == [False, False, True]
    assert not trial.verdict.holds
