"""Verifies fixes: runs the program with and without each, compares, and picks one that holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from gradscope.errors import GradscopeError
from gradscope.fixing.patch import Patch, old_place
from gradscope.fixing.plan import Candidate, Plan, Proposal, replanned, without
from gradscope.fixing.rehearsal import Trace
from gradscope.fixing.runs import Bounds, Program, Run, Start, start_process
from gradscope.fixing.training import Comparison, Difference, TrainingChange
from gradscope.model import Certainty, Finding, Header, Severity

# Backward calls of each run, unless another number is given or the findings need more. They
# include the scans for leaks at iterations 4, 6, 8, 12, 16, 24, 32, 48, 64 and 96; where it has to
# be soon, those up to 64 or 32.
LEAST_CALLS, FEW_CALLS, FEWEST_CALLS = 100, 65, 40

NEVER_CAME = "this did not happen in the run: nothing to mend"

# Calls of a changed program in which its training is compared: a rehearsal keeps all graphs.
MOST_REHEARSED = 40
_LEAST_SECONDS = 1.0  # seconds: a run that would get less time than this is not started

_Key = tuple[str, str, int, tuple[str, ...]]


@dataclass(frozen=True)
class Verdict:
    """The runs without and with a plan's changes, and what follows from them.

    ``comparison`` is what they train, by a rehearsal of each; None where the hazard is still there,
    or a rehearsal failed.
    """

    plan: Plan
    bounds: Bounds
    before: Run
    after: Run
    comparison: Comparison | None = None

    def met(self, proposal: Proposal) -> Finding | None:
        """Return the finding as the program has it now; None where it did not show this time."""
        return next(_among(proposal, self.before.findings), None)

    def never_came(self, proposal: Proposal) -> bool:
        """Whether it is about errors that were foretold, in this run as well, and none came."""
        met = [*_among(proposal, self.before.findings)]
        return bool(met) and not any(map(self._came, met))

    def _came(self, finding: Finding) -> bool:
        if finding.certainty is not Certainty.PREDICTED or finding.silent or finding.came_true:
            return True
        errors = (f for f in self.before.findings if f.severity is Severity.ERROR)
        return any(finding.expects(each.site) or finding.announces(each) for each in errors)

    def left(self, proposal: Proposal) -> Finding | None:
        """Return the finding as the changed program still has it."""
        return next(_among(proposal, self.after.findings, self.plan.changes), None)

    @property
    def new(self) -> tuple[Finding, ...]:
        """The findings of the changed program that the unchanged one did not show."""
        own = (proposal.findings for proposal in self.plan.applied)
        known = set(map(_key, chain(self.before.findings, *own)))
        return tuple(f for f in self.after.findings if _key(f, self.plan.changes) not in known)

    @property
    def reached(self) -> bool:
        """Whether the changed program got to where the findings were made."""
        made = [f.backward_call for f in map(self.met, self.plan.applied) if f is not None]
        return self.after.exit_status is not None or self.after.calls >= max(made, default=0)

    @property
    def fails(self) -> bool:
        """Whether the changed program fails, in another way than before."""
        ends = [(run.exit_status, run.exception) for run in (self.before, self.after)]
        return self.after.exit_status not in (None, 0) and ends[0] != ends[1]

    @cached_property
    def refused(self) -> tuple[Difference, ...]:
        """What the fix does to the training that no fix may do, or none that does not say so."""
        known = self.comparison
        if known is None:
            return ()
        return tuple(one for one in known.differences if not self._is_allowed(one, known))

    def _is_allowed(self, difference: Difference, comparison: Comparison) -> bool:
        """Return whether a fix may change this.

        It may take a loss from a parameter that another one still trains, if the loss belongs to
        other optimizers, or if it says so; and may bring one in where that was found to be missing.
        """
        names = {comparison.names.get(key, "") for key in difference.keys}
        if difference.change is TrainingChange.LOST:
            effects = [effect for p in self.plan.applied for effect in p.fix.effects]
            says_so = all(name and any(name in effect for effect in effects) for name in names)
            homes = comparison.homes.get(difference.loss, ())
            return says_so or difference.optimizer not in homes
        missing = {n for p in self.plan.applied for f in p.findings for n in f.parameters}
        return difference.change is TrainingChange.GAINED and names <= missing

    def mends(self, proposal: Proposal) -> bool:
        """Whether the hazard of one proposal showed and is gone, and nothing else fails."""
        gone = self.met(proposal) is not None and self.left(proposal) is None
        is_worse = any(finding.severity is not Severity.ADVICE for finding in self.new)
        return gone and self.reached and not self.fails and not is_worse

    def holds_for(self, proposal: Proposal) -> bool:
        """Whether one proposal mends its hazard, and the program trains what it did."""
        trains = self.comparison is not None and not self.refused
        return proposal.applies and trains and self.mends(proposal)

    @property
    def holds(self) -> bool:
        """Whether the fixes work: every hazard showed and is gone, and nothing else went wrong."""
        return bool(self.plan.applied) and all(map(self.holds_for, self.plan.applied))


class Tried(NamedTuple):
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


class Verification(NamedTuple):
    """All that was tried, and the ``verdict`` on the recommended or picked candidates together."""

    tried: tuple[Tried, ...]
    verdict: Verdict

    def is_recommended(self, candidate: Candidate) -> bool:
        """Whether a candidate is one of those that the verdict is on."""
        return any(p.chosen.number == candidate.number for p in self.verdict.plan.applied)


def compared(verdict: Verdict, program: Program, record: Trace, seconds: float) -> Verdict:
    """Return the verdict with what the changed program trains, if its rehearsal can be had."""
    changes, calls = verdict.plan.changes, min(len(record.calls), MOST_REHEARSED)
    with suppress(GradscopeError):  # it was killed before its record was written
        after = program.rehearse(Bounds(calls, seconds), changes)
        return replace(verdict, comparison=Comparison(record, after, changes))
    return verdict


def default_calls(proposals: Sequence[Proposal], least: int = LEAST_CALLS) -> int:
    """Return enough calls for the findings to be made again, even in another order."""
    calls = (2 * finding.backward_call for each in proposals for finding in each.findings)
    return max([least, *calls])


class _Trials:
    """Runs the program with the changes of many plans, and with the same changes once only.

    A run or a rehearsal may take half of the time that is left.
    """

    def __init__(
        self, program: Program, record: Trace | None, bounds: Bounds, tell: Callable[[str], None]
    ) -> None:
        self._program, self._bounds, self._tell = program, bounds, tell
        self._end = time.monotonic() + bounds.seconds
        self._done: dict[Any, Verdict] = {}
        tell("runs the program as it is")
        self.before = program.run((), self._within())
        if record is None:
            tell("rehearses it")
            with suppress(GradscopeError):  # it was killed before its record was written
                record = program.rehearse(self._within()._replace(calls=0))
        self._record = record

    def _within(self) -> Bounds:
        left = self._end - time.monotonic()
        return Bounds(self._bounds.calls, max(left / 2, _LEAST_SECONDS))

    def verdict(self, plan: Plan, names: str) -> Verdict | None:
        """Return what the program does with a plan's changes; None where no time is left."""
        key = tuple((change.file, change.after.data) for change in plan.changes)
        if key not in self._done:
            if time.monotonic() > self._end - _LEAST_SECONDS and self._done:
                return None
            self._tell(f"runs the program with {names}")
            after = self._program.run(plan.changes, self._within())
            verdict = Verdict(plan, self._bounds, self.before, after)
            if self._record is not None and not any(map(verdict.left, plan.applied)):
                self._tell("rehearses it")
                within = self._within().seconds
                verdict = compared(verdict, self._program, self._record, within)
            self._done[key] = verdict
        return replace(self._done[key], plan=plan)


def try_out(
    plan: Plan,
    header: Header,
    bounds: Bounds,
    tell: Callable[[str], None],
    picks: Sequence[int] = (),
    record: Trace | None = None,
    start: Start = start_process,
    *,
    every: bool = True,
) -> Verification:
    """Run and rehearse the recorded program as it is and with each candidate, all within
    ``bounds.seconds``; ``tell`` is called with what begins. ``record`` is what a rehearsal of the
    program has shown already.

    Of a finding's candidates the first that holds is taken, or the one of ``picks``; unless
    ``every`` one is asked for, no other is tried after it. The candidates of other findings that
    are tried with it are those taken so far. Raise GradscopeError if the
    program cannot be run again.
    """
    program = Program(header, start=start)
    program.check()
    trials = _Trials(program, record, bounds, tell)
    unchanged = Verdict(plan, bounds, trials.before, trials.before)
    plan = without(plan, [*filter(unchanged.never_came, plan.proposals)], NEVER_CAME)
    found: list[Tried] = []
    for proposal in plan.proposals:
        tried: list[Tried] = []
        picked = [c for c in proposal.candidates if c.number in picks]
        for candidate in (c for c in picked or proposal.candidates if c.can_be_tried):
            with_it = replanned(plan, candidate)
            mine = next(p for p in with_it.proposals if p.number == proposal.number)
            verdict = trials.verdict(with_it, f"fix {candidate.number}") if mine.applies else None
            tried.append(Tried(candidate, mine, verdict))
            if tried[-1].holds and not every:
                break
        held = [t for t in tried if t.holds] or [t for t in tried if t.verdict is not None]
        plan = replanned(plan, held[0].candidate) if held else plan
        found += tried
    if not found:
        return Verification((), replace(unchanged, plan=plan))
    verdict = trials.verdict(plan, "these fixes")
    if verdict is None:  # no time was left for what is chosen together
        verdict = next(t.verdict for t in reversed(found) if t.verdict is not None)
    return Verification(tuple(found), verdict)


def _among(
    proposal: Proposal, findings: Iterable[Finding], changes: Sequence[Patch] = ()
) -> Iterator[Finding]:
    """Yield those of the findings of a changed program that a proposal is about."""
    keys = set(map(_key, proposal.findings))
    return (finding for finding in findings if _key(finding, changes) in keys)


def _key(finding: Finding, changes: Sequence[Patch] = ()) -> _Key:
    """Return what identifies a finding: its code, and its line in the unchanged program."""
    site, of = finding.anchor, finding.parameters if finding.step else ()
    if site is None:
        return finding.code, "", 0, of
    return finding.code, *old_place(changes, site.file, site.line), of
