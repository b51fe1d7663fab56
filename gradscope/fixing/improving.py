"""Improves the fixes of a run that has ended: rehearses it, and tries what is proposed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gradscope.errors import GradscopeError
from gradscope.fixing.options import with_options
from gradscope.fixing.proposals import Candidate, Plan, Proposal, plan, replanned
from gradscope.fixing.runs import REFUSED, Bounds, Run, Start, check, rehearse, run, start_process
from gradscope.fixing.verify import Verdict, default_calls
from gradscope.model import Applicability, Finding, Fix, Recording, Severity

_MOST_TRIED = 6
_LEAST_SECONDS = 2.0


def improved(
    recording: Recording, seconds: float, tell: Callable[[str], None], start: Start = start_process
) -> Recording:
    """Return the recording with fixes that a rehearsal has found, and those first that held when
    they were tried; all within so many seconds, and without a change outside the processes.

    ``tell`` is called with what begins. Raise GradscopeError if the program cannot be run again.
    """
    check(recording)
    end = time.monotonic() + seconds
    tell("rehearses the run, to find a fix")
    try:
        record = rehearse(recording, Bounds(0, seconds), guarded=True, start=start)
        recording = with_options(recording, record)
        if record.stopped:
            tell(f"the rehearsal {record.ended}")
    except GradscopeError as failure:
        tell(str(failure))
    return _tried(recording, end, tell, start)


def _tried(
    recording: Recording, end: float, tell: Callable[[str], None], start: Start
) -> Recording:
    """Return the recording with the first fix of each finding that holds as its first one."""
    proposed = plan(recording)
    bounds = Bounds(default_calls(proposed.proposals), 0)
    ended = recording.outcome.exit_status
    before = Run(recording, (), ended, "")
    judged: dict[int, _Judgement] = {}
    for proposal in proposed.proposals:
        if proposal.finding.severity is Severity.ADVICE:
            continue
        judgement = _Judgement()
        judged |= dict.fromkeys(map(id, proposal.findings), judgement)
        for candidate in [c for c in proposal.candidates if c.can_be_tried][:_MOST_TRIED]:
            left = end - time.monotonic()
            if left < _LEAST_SECONDS:
                break
            tell(f"tries fix {candidate.number}")
            with_it = _only(recording, proposed, proposal, candidate)
            within = Bounds(bounds.calls, left)
            after = run(recording, with_it.changes, within, guarded=True, start=start)
            if after.exit_status == REFUSED:
                continue
            judgement.is_tried = True
            verdict = Verdict(with_it, bounds, before, after)
            if after.exit_status is not None and verdict.mends(proposal):
                judgement.held = candidate.fix
                judgement.is_proven = after.exit_status == 0
                break
    findings = (judged[id(f)].applied(f) if id(f) in judged else f for f in recording.findings)
    return replace(recording, findings=tuple(findings))


@dataclass
class _Judgement:
    """What trying the candidates of a finding has shown."""

    held: Fix | None = None
    is_proven: bool = False
    """Whether the program came to its own end with it."""
    is_tried: bool = False

    def applied(self, finding: Finding) -> Finding:
        """Return a finding with what held as its first fix; only that is said to be safe."""
        fixes = [each for each in finding.fixes if self.held is None or each != self.held]
        if self.is_tried:
            fixes = [_careful(fix) for fix in fixes]
        if self.held is not None:
            safe = Applicability.MACHINE_APPLICABLE
            first = replace(self.held, applicability=safe) if self.is_proven else self.held
            fixes = [first, *(fix for fix in fixes if fix.edits != first.edits)]
        return replace(finding, fix=fixes[0], alternatives=tuple(fixes[1:])) if fixes else finding


def _careful(fix: Fix) -> Fix:
    if fix.applicability is not Applicability.MACHINE_APPLICABLE or not fix.edits:
        return fix
    return replace(fix, applicability=Applicability.MAYBE_INCORRECT)


def _only(recording: Recording, plan: Plan, proposal: Proposal, candidate: Candidate) -> Plan:
    """Return the plan with one candidate for one proposal, and nothing for the others."""
    alone = replace(plan, proposals=(replace(proposal, chosen=candidate, problem=""),))
    return replanned(recording, alone, [candidate.number])
