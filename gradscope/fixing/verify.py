"""Tries fixes out: runs the program with and without each, compares, and chooses one that holds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from gradscope.fixing.gradients import Key, Line
from gradscope.fixing.patch import Change, bare
from gradscope.fixing.proposals import Candidate, Plan, Proposal, replanned, without
from gradscope.fixing.runs import Bounds, Loss, Run, check, run
from gradscope.fixing.training import Change as TrainingChange
from gradscope.fixing.training import Comparison, Difference, Unit, said_by, trained_by
from gradscope.model import Certainty, Finding, Recording, Severity

LEAST_CALLS = 100
"""Backward calls of each run, unless another number is given or the findings need more."""

NEVER_CAME = "this did not happen in the run: nothing to mend"

_REFERENCE_CALLS = 24
_FEWEST_STEPS = 4
"""Calls of a line, the first of which is no measure, from which its steps can be compared."""

_LEAST_SECONDS = 1.0
"""A run that would get less time than this is not started."""

_Key = tuple[str, str, int]
_ROOT = re.compile(r"([\w.\[\]'\"]+)\s*\.\s*backward\s*\(")


@dataclass(frozen=True)
class Verdict:
    """The runs without and with a plan's changes, and what follows from them.

    ``reference`` is the run without the fix in which the call that fails goes on, where that call
    failed. ``picked`` are the numbers of the candidates that the user chose.
    """

    plan: Plan
    bounds: Bounds
    before: Run
    after: Run
    reference: Run | None = None
    picked: frozenset[int] = frozenset()

    def met(self, proposal: Proposal) -> Finding | None:
        """Return the finding as the program has it now; None where it did not show this time."""
        keys = _keys(proposal.findings, ())
        return next((f for f in self.before.findings if _key(f, ()) in keys), None)

    def never_came(self, proposal: Proposal) -> bool:
        """Whether it is about errors that were foretold, in this run as well, and none came."""
        keys = _keys(proposal.findings, ())
        met = [f for f in self.before.findings if _key(f, ()) in keys]
        return bool(met) and not any(map(self._came, met))

    def _came(self, finding: Finding) -> bool:
        if finding.certainty is not Certainty.PREDICTED or finding.silent or finding.came_true:
            return True
        errors = (f for f in self.before.findings if f.severity is Severity.ERROR)
        return any(finding.expects(each.site) or finding.announces(each) for each in errors)

    def left(self, proposal: Proposal) -> Finding | None:
        """Return the finding as the changed program still has it."""
        keys = _keys(proposal.findings, ())
        return next((f for f in self.after.findings if _key(f, self.plan.changes) in keys), None)

    def before_of(self, loss: Loss) -> Loss | None:
        """Return the loss of the same line in the unchanged program."""
        return self._same(loss, self.before.losses)

    def beside(self, loss: Loss) -> Loss | None:
        """Return the loss of the same line where nothing failed, if that is known."""
        return self._same(loss, self.reference.losses if self.reference is not None else ())

    def _same(self, loss: Loss, among: Iterable[Loss]) -> Loss | None:
        unit = self.unit_of(loss.of)
        return next((one for one in among if unit == {one.of}), None)

    @property
    def new(self) -> tuple[Finding, ...]:
        """The findings of the changed program that the unchanged one did not show."""
        known = _keys(self.before.findings, ())
        known |= _keys(chain.from_iterable(proposal.findings for proposal in self.plan.applied), ())
        return tuple(f for f in self.after.findings if _key(f, self.plan.changes) not in known)

    @property
    def reached(self) -> bool:
        """Whether the changed program got to where the findings were made."""
        made = [
            found.backward_call
            for proposal in self.plan.applied
            if (found := self.met(proposal)) is not None
        ]
        return self.after.exit_status is not None or self.after.calls >= max(made, default=0)

    @property
    def seconds_of_a_step(self) -> tuple[float | None, float | None]:
        """How long an iteration takes with the fix, and as the program is: of the same number of
        calls, and none as the program is where it failed before there were enough of them.

        The run with nothing freed is no measure: it keeps every graph.
        """
        after, before = self.after.training, self.before.training
        same = min(after.steps_made, before.steps_made)
        if same < _FEWEST_STEPS:
            return after.seconds_of_a_step(), None
        return after.seconds_of_a_step(same), before.seconds_of_a_step(same)

    @property
    def fails(self) -> bool:
        """Whether the changed program fails, in another way than before."""
        ends = [(run.exit_status, run.exception) for run in (self.before, self.after)]
        return self.after.exit_status not in (None, 0) and ends[0] != ends[1]

    @property
    def is_worse(self) -> bool:
        """Whether the changed program has a finding that is more than advice, and is new."""
        return any(finding.severity is not Severity.ADVICE for finding in self.new)

    @cached_property
    def units(self) -> Mapping[Line, Unit]:
        """The losses of the unchanged program that the calls of the changed one stand for."""
        runs = [r for r in (self.before, self.reference) if r is not None]
        lines = {call.line for r in runs for call in r.training.calls}
        after = {call.line for call in self.after.training.calls}
        return units_of(after, lines, self.plan.changes)

    def unit_of(self, line: Line) -> Unit:
        """Return the losses of the unchanged program that a call stands for."""
        return self.units.get(line, frozenset({line}))

    @cached_property
    def comparison(self) -> Comparison:
        """What was trained, without the fix and with it."""
        reference = self.reference.training if self.reference is not None else None
        is_exact = "inplace operation" not in self.before.exception
        return Comparison(
            self.before.training, reference, self.after.training, self.unit_of, is_exact
        )

    @cached_property
    def refused(self) -> tuple[Difference, ...]:
        """What the fix does to the training that no fix may do, or none that does not say so."""
        return tuple(one for one in self.comparison.differences if not self._is_allowed(one))

    def _is_allowed(self, difference: Difference) -> bool:
        """Return whether a fix may change this.

        It may take a loss from a parameter that another one still trains, if the loss belongs to
        other optimizers, or if it says so; and may bring one in if it says so and was picked.
        """
        effects = [effect for p in self.plan.applied for effect in p.fix.effects]
        names = self.comparison.names
        says_so = all(said_by(effects, names.get(key, "")) for key in difference.keys)
        picked = any(p.chosen.number in self.picked for p in self.plan.applied)
        match difference.change:
            case TrainingChange.LOST:
                homes = self.comparison.homes_of(difference.loss)
                return says_so or difference.optimizer not in homes
            case TrainingChange.GAINED | TrainingChange.OTHER:
                return says_so and picked
        return False

    @cached_property
    def trained(self) -> Mapping[Key, Unit]:
        """The losses that train each parameter with the fix."""
        return trained_by(self.after.training, self.unit_of)

    def holds_for(self, proposal: Proposal) -> bool:
        """Whether the hazard of one proposal showed and is gone, and nothing else went wrong."""
        gone = self.met(proposal) is not None and self.left(proposal) is None
        sound = not self.fails and not self.is_worse and not self.refused
        return proposal.applies and gone and self.reached and sound

    @property
    def holds(self) -> bool:
        """Whether the fixes work: every hazard showed and is gone, and nothing else went wrong."""
        return bool(self.plan.applied) and all(map(self.holds_for, self.plan.applied))


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate and what trying it out has shown; None where it was not tried.

    ``proposal`` is that of the plan that was tried.
    """

    candidate: Candidate
    proposal: Proposal
    verdict: Verdict | None

    @property
    def holds(self) -> bool:
        """Whether it works."""
        return self.verdict is not None and self.verdict.holds_for(self.proposal)


@dataclass(frozen=True, slots=True)
class Trial:
    """All that was tried, and the ``verdict`` on the recommended or picked candidates together."""

    tried: tuple[Tried, ...]
    verdict: Verdict

    def is_recommended(self, candidate: Candidate) -> bool:
        """Whether a candidate is one of those that the verdict is on."""
        return any(p.chosen.number == candidate.number for p in self.verdict.plan.applied)


def default_calls(proposals: Sequence[Proposal]) -> int:
    """Return enough calls for the findings to be made again, even in another order."""
    return max(
        [LEAST_CALLS, *(2 * finding.backward_call for p in proposals for finding in p.findings)]
    )


class _Trials:
    """Runs the program with the changes of many plans, and with the same changes once only."""

    def __init__(
        self,
        recording: Recording,
        bounds: Bounds,
        picked: Iterable[int],
        tell: Callable[[str], None],
    ) -> None:
        self._recording = recording
        self._bounds = bounds
        self._picked = frozenset(picked)
        self._tell = tell
        self._end = time.monotonic() + bounds.seconds
        self._done: dict[Any, Verdict] = {}
        tell("runs the program as it is")
        self._before = run(recording, (), self._within(2))
        self._reference: Run | None = None
        failed = self._before.training.failed
        if failed is not None and self._left > _LEAST_SECONDS:
            tell("runs it with nothing freed")
            calls = min(bounds.calls, max(_REFERENCE_CALLS, 2 * failed.number + 8))
            bounded = Bounds(calls, self._within(4).seconds)
            self._reference = run(recording, (), bounded, reference=True)

    @property
    def _left(self) -> float:
        return self._end - time.monotonic()

    def _within(self, share: int) -> Bounds:
        """Return the bounds of a run that may take this part of the time that is left."""
        return Bounds(self._bounds.calls, max(self._left / share, _LEAST_SECONDS))

    def verdict(self, plan: Plan, to_come: int, names: str) -> Verdict | None:
        """Return what the program does with a plan's changes; None where no time is left.

        Of that the run gets a half at most, if this is not the last of ``to_come``.
        """
        key = tuple((change.file, change.after.data) for change in plan.changes)
        after = self._done[key].after if key in self._done else None
        if after is None:
            if self._left < _LEAST_SECONDS and self._done:
                return None
            self._tell(f"runs the program with {names}")
            after = run(self._recording, plan.changes, self._within(min(to_come, 2)))
        verdict = self._of(plan, after)
        self._done[key] = verdict
        return verdict

    def _of(self, plan: Plan, after: Run) -> Verdict:
        return Verdict(plan, self._bounds, self._before, after, self._reference, self._picked)

    def as_it_is(self, plan: Plan) -> Verdict:
        """Return what the program does without any change."""
        return self._of(plan, self._before)


def try_out(
    plan: Plan,
    recording: Recording,
    bounds: Bounds,
    tell: Callable[[str], None],
    picks: Sequence[int] = (),
) -> Trial:
    """Run the recorded program as it is and with each candidate, all within ``bounds.seconds``;
    ``tell`` is called with what begins.

    Of a finding's candidates the first that holds is taken, one that is machine-applicable before
    others, or the one of ``picks``. The candidates of other findings that are tried with it are
    those taken so far. Raise GradscopeError if the program cannot be run again.
    """
    check(recording)
    trials = _Trials(recording, bounds, picks, tell)
    unchanged = trials.as_it_is(plan)
    plan = without(recording, plan, filter(unchanged.never_came, plan.proposals), NEVER_CAME)
    taken = {p.number: p.chosen.number for p in plan.proposals}
    waiting = sum(len(_to_try(proposal, picks)) for proposal in plan.proposals)
    found: list[Tried] = []
    for proposal in plan.proposals:
        tried: list[Tried] = []
        for candidate in _to_try(proposal, picks):
            chosen = taken | {proposal.number: candidate.number}
            with_it = replanned(recording, plan, chosen.values())
            mine = next(p for p in with_it.proposals if p.number == proposal.number)
            verdict = (
                trials.verdict(with_it, waiting, f"fix {candidate.number}")
                if mine.applies
                else None
            )
            waiting -= 1
            tried.append(Tried(candidate, mine, verdict))
        held = sorted((t for t in tried if t.holds), key=lambda t: t.candidate.rank)
        first = next(iter(held or [t for t in tried if t.verdict is not None]), None)
        if first is not None:
            taken[proposal.number] = first.candidate.number
        found += tried
    best = replanned(recording, plan, taken.values())
    if not found:
        return Trial((), replace(unchanged, plan=best))
    verdict = trials.verdict(best, 1, "these fixes")
    if verdict is None:  # no time was left for what is chosen together
        verdict = next(t.verdict for t in reversed(found) if t.verdict is not None)
    return Trial(tuple(found), verdict)


def _to_try(proposal: Proposal, picks: Sequence[int]) -> list[Candidate]:
    picked = [c for c in proposal.candidates if c.number in picks]
    return [c for c in picked or proposal.candidates if c.can_be_tried]


def _keys(findings: Any, changes: Sequence[Change]) -> set[_Key]:
    return {_key(finding, changes) for finding in findings}


def _key(finding: Finding, changes: Sequence[Change]) -> _Key:
    """Return what identifies a finding: its code, and its line in the unchanged program."""
    if finding.site is None:
        return finding.code, "", 0
    change = next((c for c in changes if c.file == finding.site.file), None)
    line = finding.site.line
    return finding.code, finding.site.file, line if change is None else change.old_line(line)


def units_of(
    after: Collection[Line], before: Collection[Line], changes: Sequence[Change]
) -> Mapping[Line, frozenset[Line]]:
    """Return for each line of a backward call in the changed program its lines in the unchanged
    one: that from which it comes, the same text where it was moved, all losses of a sum.
    """
    program = _Program(changes)
    kept = {line: program.kept(line, before) for line in after}
    gone = set(before) - {old for old in kept.values() if old is not None}
    return {
        line: frozenset({old}) if old is not None else program.made_of(line, gone)
        for line, old in kept.items()
    }


class _Program:
    """A program before and after its changes."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = {change.file: change for change in changes}

    def kept(self, line: Line, before: Collection[Line]) -> Line | None:
        """Return the line of a call whose text, and that of its callers, is the same."""
        texts = self._texts(line, new=True)
        same = [old for old in before if self._texts(old, new=False) == texts]
        origin = self._origin(line)
        return origin if origin in same else min(same, default=None)

    def made_of(self, line: Line, gone: Collection[Line]) -> frozenset[Line]:
        """Return the calls that a new text replaces: that of its line, and those whose loss it
        has.
        """
        origin = self._origin(line)
        found = {origin} & set(gone)
        text = self._text(line.file, line.number, new=True)
        for old in (old for old in gone if old.file == line.file):
            root = _ROOT.search(self._text(old.file, old.number, new=False))
            if root is not None and re.search(rf"(?<![\w.]){re.escape(root[1])}(?![\w])", text):
                found.add(old)
        return frozenset(found or {origin})

    def _origin(self, line: Line) -> Line:
        via = tuple((file, self._old(file, number)) for file, number in line.via)
        return Line(line.file, self._old(line.file, line.number), via)

    def _old(self, file: str, number: int) -> int:
        change = self._changes.get(file)
        return number if change is None else change.old_line(number)

    def _texts(self, line: Line, *, new: bool) -> list[tuple[str, str]]:
        places = ((line.file, line.number), *line.via)
        return [(file, self._text(file, number, new=new)) for file, number in places]

    def _text(self, file: str, number: int, *, new: bool) -> str:
        """Return the text of a line; its number where the file is not changed."""
        change = self._changes.get(file)
        if change is None:
            return str(number)
        lines = (change.after if new else change.before).lines
        return bare(lines[number - 1]).strip() if 0 < number <= len(lines) else ""
