"""What gradscope calls before a backward call runs is exactly what torch's engine then raises, in random programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import strategies as st

import gradscope
from gradscope.collect import lifting
from gradscope.model import Certainty, Finding
from tests.property.operations import IN_PLACE
from tests.property.programs import BACKWARD, GRAD, Outcome, Program, Step, programs, run
from tests.property.rounds import Round, rounds


def is_certain(finding: Finding) -> bool:
    return finding.code in ("GS101", "GS201") and finding.certainty is Certainty.CERTAIN


def agrees(called: set[str], outcome: Outcome) -> bool:
    """Whether what was called is what the engine then raised."""
    if outcome.second_time or outcome.in_place:
        return called == {"GS101" if outcome.second_time else "GS201"}
    # Another error stopped the engine before it could get to what was called.
    return outcome.error is not None or not called


def agrees_without_hooks(called: set[str], missed: set[str], outcome: Outcome) -> bool:
    """Whether nothing was called in vain; a graph's lists and custom Functions are not all seen without hooks."""
    if outcome.second_time or outcome.in_place:
        return bool(called | missed)
    return outcome.error is not None or not called


def comparable(outcome: Outcome) -> Outcome:
    """An outcome without the name of the node that a stale tensor came out of.

    Known limit: where views were modified in place torch has built that node anew, under another name, and under hooks the
    name cannot always be told. All else of the error's text is compared.
    """
    error = (
        None
        if outcome.error is None
        else re.sub(r", which is output \d+ of \S+,", "", outcome.error)
    )
    return replace(outcome, error=error)


def run_watched(program: Program, hooks: bool) -> tuple[list[Outcome], list[str]]:
    """Run the program in a watch; return what it did, and each step at which gradscope and the engine disagree."""
    disagreements: list[str] = []

    def compare(step: Callable[[], Outcome]) -> Outcome:
        # A finding is told once per cause: a watch of its own sees those of this step.
        with gradscope.watch(hooks=hooks) as scope:
            outcome = step()
        called = {
            finding.code for finding in scope.findings if is_certain(finding) and not finding.missed
        }
        missed = {finding.code for finding in scope.findings if finding.missed}
        good = (
            not missed and agrees(called, outcome)
            if hooks
            else agrees_without_hooks(called, missed, outcome)
        )
        if not good:
            disagreements.append(
                f"step {outcome.number} {outcome.text}: called {called}, raised {outcome.error}"
            )
        return outcome

    with gradscope.watch(hooks=hooks) as scope:
        outcomes = run(program, compare)
        notes = scope.recording().summary.notes
    return outcomes, [*disagreements, *(note for note in notes if "please report" in note)]


def repeated(base: Program, changes: list[tuple[int, Step]]) -> list[Program]:
    """A program as iterations of a loop: most are alike, and each change makes one that is not."""
    iterations = [base] * 3
    for where, step in changes:
        at = where % len(base)
        iterations += [[*base[:at], step, *base[at:]], base, base]
    return iterations


def with_plain_calls(program: Program) -> Program:
    """The program with most of its backward calls made plain, and without most changes in place."""
    steps: Program = []
    for name, a, b, k in program:
        if name in (*BACKWARD, *GRAD) and k:
            steps.append(("backward", a, b, k))
        elif name not in IN_PLACE or k > 5:
            steps.append((name, a, b, k))
    return steps


@rounds
@pytest.mark.parametrize("hooks", [True, False], ids=["hooks", "no-hooks"])
def test_called_exactly_when_the_engine_raises(hooks: bool, programs_of: Round) -> None:
    programs_of.try_out(calls_are_right, 100, hooks=st.just(hooks), program=programs())


def calls_are_right(hooks: bool, program: Program) -> None:
    plain = run(program)
    watched, disagreements = run_watched(program, hooks)
    pairs = zip(plain, watched, strict=True)
    changes = [
        f"changed:\n  {one}\n  {other}"
        for one, other in pairs
        if comparable(one) != comparable(other)
    ]
    replay = f'replay: python -m tests.property.programs "{program}"'
    assert not [*disagreements, *changes], "\n".join([*disagreements, *changes, replay])


# Known limit: without hooks it cannot be seen what C++ functions saved, as torch's foreach nodes.
CHANGE = programs().map(lambda p: p[0]).filter(lambda step: step[0] != "foreach")
CHANGES = st.lists(st.tuples(st.integers(0, 24), CHANGE), max_size=3)


@rounds
def test_called_exactly_while_iterations_repeat(programs_of: Round) -> None:
    """The same with the hooks lifted as soon as an iteration repeats."""
    programs_of.try_out(calls_are_right_in_a_loop, 40, base=programs(), changes=CHANGES)


def calls_are_right_in_a_loop(base: Program, changes: list[tuple[int, Step]]) -> None:
    iterations = repeated(with_plain_calls(base), changes)
    with (
        mock.patch.multiple(lifting, _ALIKE=1, _ALIKE_WITHOUT_STEPS=1),
        gradscope.watch(),
    ):
        ran = [(program, *run_watched(program, True)) for program in iterations]
    for program, watched, disagreements in ran:
        pairs = zip(run(program), watched, strict=True)
        changed = [
            f"changed:\n  {one}\n  {other}"
            for one, other in pairs
            if comparable(one) != comparable(other)
        ]
        # Known limit: without hooks nobody can tell that a saved tensor was detached in place since.
        wrong = [text for text in disagreements if "detached in-place" not in text]
        assert not [*wrong, *changed], "\n".join([*wrong, *changed, f"iterations = {iterations}"])
