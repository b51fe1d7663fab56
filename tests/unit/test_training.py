"""What two runs trained is compared by parameter, step and loss; the time for all trials is shared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradscope.fixing import verify
from gradscope.fixing.gradients import Line, Training, read_training
from gradscope.fixing.patch import Change, Source, apply, split
from gradscope.fixing.proposals import Plan, plan
from gradscope.fixing.runs import Bounds, Run, told_place
from gradscope.fixing.training import Comparison, owners
from gradscope.fixing.verify import units_of
from gradscope.model import (
    Certainty,
    Edit,
    Finding,
    Fix,
    FixKind,
    Header,
    Recording,
    Severity,
    Site,
)

FILE = "f.py"
G, D, E = (0, 0, 0), (1, 0, 0), (1, 0, 1)


def notes(tmp_path: Path, *rows: list[Any]) -> Training:
    """A run of two optimizers, of `G.weight`, `D.weight` and `D.bias`."""
    head: list[list[Any]] = [["optimizer", 0, "Adam"], ["optimizer", 1, "SGD"]]
    for number, (key, name) in enumerate({G: "G.weight", D: "D.weight", E: "D.bias"}.items()):
        head += [["parameter", number, *key], ["name", number, name]]
    file = tmp_path / "notes"
    file.write_text("".join(json.dumps(row) + "\n" for row in (*head, *rows)) + '["step", 0, "f.')
    return read_training(file)


def call(number: int, line: int, *, failed: bool = False, value: float = 1.0) -> list[Any]:
    reached = [0, 1, 2] if failed else []
    return ["call", number, [[FILE, line]], True, value, failed, reached, 0.5 * number]


def step(
    optimizer: int, after: int, calls: dict[int, list[int]], sizes: dict[int, float] | None = None
) -> list[Any]:
    rows = [[numbers, [parameter]] for parameter, numbers in calls.items()]
    return ["step", optimizer, [[FILE, 90 + optimizer]], after, rows, list((sizes or {}).items())]


def differences(before: Training, reference: Training | None, after: Training) -> list[str]:
    found = Comparison(before, reference, after, lambda line: frozenset({line}))
    return [f"{d.change} {owners(d.keys, found)} by {d.loss.number}" for d in found.differences]


@pytest.fixture
def base(tmp_path: Path) -> Training:
    """Two rounds: line 10 trains G, line 20 trains D."""
    rows = []
    for n in (1, 3):
        rows += [call(n, 10), step(0, n, {0: [n]}), call(n + 1, 20)]
        rows += [step(1, n + 1, {1: [n + 1], 2: [n + 1]})]
    return notes(tmp_path, *rows)


@pytest.fixture
def before(tmp_path: Path) -> Training:
    """The same, which fails at line 20."""
    return notes(tmp_path, call(1, 10), step(0, 1, {0: [1]}), call(2, 20, failed=True))


def test_a_file_that_was_cut_off_is_read_up_to_there(base: Training) -> None:
    assert [(c.number, c.line) for c in base.calls] == [
        (n, Line(FILE, 20 - 10 * (n % 2))) for n in (1, 2, 3, 4)
    ]
    assert (base.seconds_of_a_step(), base.seconds_of_a_step(1)) == (1.0, None)
    assert base.homes() == {Line(FILE, 10): {0}, Line(FILE, 20): {1}}
    assert read_training(Path("/nowhere")) == Training()


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [(2, 9, (0.5, None)), (3, 9, (0.5, None)), (9, 9, (0.5, 0.5)), (5, 9, (0.5, 0.5))],
)
def test_steps_are_compared_over_the_same_calls(
    tmp_path: Path, before: int, after: int, steps: tuple[float, float | None]
) -> None:
    def run(calls: int) -> Run:
        rows = [call(n, 10) for n in range(1, calls + 1)]
        if calls == 9:  # it slows down
            for row in rows[6:]:
                row[-1] *= 10
        return Run(None, (), 0, "", notes(tmp_path, *rows), 1.0)

    verdict = verify.Verdict(Plan((), ()), Bounds(9, 1.0), run(before), run(after))
    assert verdict.seconds_of_a_step == steps


def test_what_is_trained_as_before_differs_in_nothing(base: Training, before: Training) -> None:
    assert differences(before, base, base) == []
    assert differences(base, None, base) == []


def test_what_gets_no_gradient_any_more_is_untrained(
    tmp_path: Path, base: Training, before: Training
) -> None:
    without = replace(
        base, steps=tuple(replace(s, calls={}) if s.optimizer else s for s in base.steps)
    )
    assert differences(before, base, without) == ["untrained `D.*` by 20"]
    # No reference: what the failed call reaches tells it, for optimizers that step.
    assert differences(before, None, without) == ["untrained `D.*` by 20"]
    only_bias = notes(tmp_path, *(step(1, 0, {2: [1]}), call(1, 20)))
    assert differences(base, None, only_bias) == ["untrained `D.weight` by 20"]


def test_a_gradient_that_comes_in_or_goes_is_told(
    tmp_path: Path, base: Training, before: Training
) -> None:
    rows = [call(1, 10), call(2, 20), step(0, 2, {0: [1, 2]}), step(1, 2, {1: [2], 2: [2]})]
    assert differences(before, base, notes(tmp_path, *rows)) == ["gained `G.weight` by 20"]
    both = [call(1, 10), call(2, 20), step(1, 2, {1: [1, 2], 2: [1, 2]})]
    one = [call(1, 10), call(2, 20), step(1, 2, {1: [2], 2: [2]})]
    found = differences(notes(tmp_path, *both), None, notes(tmp_path, *one))
    assert found == ["lost `D.*` by 10"]


def test_a_gradient_through_a_carried_state_is_neither_lost_nor_gained(tmp_path: Path) -> None:
    reference = notes(
        tmp_path, call(1, 10), step(0, 1, {0: [1]}), call(2, 10), step(0, 2, {0: [-2]})
    )
    cut = notes(tmp_path, call(1, 10), step(0, 1, {0: [1]}), call(2, 10), step(0, 2, {}))
    kept = notes(tmp_path, call(1, 10), step(0, 1, {0: [1]}), call(2, 10), step(0, 2, {0: [2]}))
    before = notes(tmp_path, call(1, 10), step(0, 1, {0: [1]}), call(2, 10, failed=True))
    assert differences(before, reference, cut) == []
    assert differences(before, reference, kept) == []


def test_another_gradient_of_the_same_loss_is_told_where_its_value_is_the_same(
    tmp_path: Path,
) -> None:
    def run(size: float, value: float = 1.0) -> Training:
        rows = [call(1, 10, value=value), step(0, 1, {0: [1]}, {0: size}), call(2, 20, failed=True)]
        return notes(tmp_path, *rows)

    assert differences(run(1.0), None, run(0.5)) == ["other `G.weight` by 10"]
    assert differences(run(1.0), None, run(0.5, value=3.0)) == []


TEXT = "a.backward()\nx = 1\nb.backward()\ny = 2\n"


def changed(*edits: tuple[int, str]) -> Change:
    return apply(Source(FILE, split(TEXT)), [Edit(FILE, *edit) for edit in edits])


@pytest.mark.parametrize(
    ("edits", "after"),
    [
        ([(2, "x = 2")], {1: {1}, 3: {3}}),
        ([(1, ""), (3, "(a + b).backward()")], {2: {1, 3}}),
        ([(1, "(a + b).backward()"), (3, "")], {1: {1, 3}}),
        ([(1, ""), (4, "y = 2\na.backward()")], {2: {3}, 4: {1}}),
        ([(1, "a.backward(retain_graph=True)")], {1: {1}, 3: {3}}),
        ([(2, "c.backward()")], {1: {1}, 2: {2}, 3: {3}}),
    ],
)
def test_calls_stand_for_the_losses_that_they_are_made_of(
    edits: list[tuple[int, str]], after: dict[int, set[int]]
) -> None:
    lines = {Line(FILE, number) for number in after}
    units = units_of(lines, {Line(FILE, 1), Line(FILE, 3)}, [changed(*edits)])
    assert {line.number: {old.number for old in unit} for line, unit in units.items()} == after


def test_a_function_for_any_loss_is_another_line_for_each_caller() -> None:
    old = {Line("lib.py", 5, ((FILE, 1),)), Line("lib.py", 5, ((FILE, 3),))}
    moved = changed((1, ""), (4, "y = 2\na.backward()"))
    after = {Line("lib.py", 5, ((FILE, number),)) for number in (2, 4)}
    units = units_of(after, old, [moved])
    found = {line.via[0][1]: {one.via for one in unit} for line, unit in units.items()}
    assert found == {2: {((FILE, 3),)}, 4: {((FILE, 1),)}}
    assert {told_place(line, old) for line in old} == {(FILE, 1), (FILE, 3)}
    assert told_place(Line("lib.py", 5), {Line("lib.py", 5)}) == ("lib.py", 5)


def test_no_run_is_begun_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / FILE
    file.write_text(TEXT)
    fixes = [Fix(FixKind.OTHER, "m", (Edit(str(file), 2, f"x = {n}"),)) for n in (2, 3, 4)]
    finding = Finding(
        "GS101", "n", Severity.ERROR, Certainty.CERTAIN, "m", Site(str(file), 1),
        fix=fixes[0], alternatives=tuple(fixes[1:]),
    )  # fmt: skip
    recording = Recording(
        Header("", "", "", "f.py", cwd=str(tmp_path)),
        findings=(finding,),
        sources={str(file): TEXT},
    )
    clock = [0.0]
    given: list[float] = []

    def run(recording: Recording, changes: object, bounds: Bounds, **options: object) -> Run:
        given.append(bounds.seconds)
        clock[0] += 40
        return Run(replace(recording, findings=(finding,)), (), 0, "")

    monkeypatch.setattr(verify, "run", run)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    trial = verify.try_out(plan(recording), recording, Bounds(5, 100), lambda doing: None)
    assert given == [50, 30, 10]
    assert [one.verdict is None for one in trial.tried] == [False, False, True]
    assert not trial.verdict.holds
