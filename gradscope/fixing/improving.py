"""Improves the fixes of a run that has ended: rehearses it, and tries what is proposed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gradscope.errors import GradscopeError
from gradscope.fixing.options import with_options
from gradscope.fixing.proposals import Candidate, Plan, Proposal, plan, replanned
from gradscope.fixing.runs import Bounds, Run, Start, check, rehearse, run, start_process
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
        record = rehearse(recording, seconds, guarded=True, start=start)
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
    best: dict[int, tuple[Fix, bool]] = {}
    for proposal in proposed.proposals:
        if proposal.finding.severity is Severity.ADVICE:
            continue
        for candidate in [c for c in proposal.candidates if c.can_be_tried][:_MOST_TRIED]:
            left = end - time.monotonic()
            if left < _LEAST_SECONDS:
                break
            tell(f"tries fix {candidate.number}")
            with_it = _only(recording, proposed, proposal, candidate)
            after = run(
                recording, with_it.changes, replace(bounds, seconds=left), guarded=True, start=start
            )
            verdict = Verdict(with_it, bounds, before, after)
            if after.exit_status is not None and _holds(verdict, proposal):
                best[proposal.number] = candidate.fix, after.exit_status == 0
                break
    chosen = {
        id(finding): best[proposal.number]
        for proposal in proposed.proposals
        if proposal.number in best
        for finding in proposal.findings
    }
    findings = tuple(
        _first(each, *chosen[id(each)]) if id(each) in chosen else each
        for each in recording.findings
    )
    return replace(recording, findings=findings)


def _only(recording: Recording, plan: Plan, proposal: Proposal, candidate: Candidate) -> Plan:
    """Return the plan with one candidate for one proposal, and nothing for the others."""
    alone = replace(plan, proposals=(replace(proposal, chosen=candidate, problem=""),))
    return replanned(recording, alone, [candidate.number])


def _holds(verdict: Verdict, proposal: Proposal) -> bool:
    codes = {(each.code, each.site) for each in proposal.findings}
    gone = not any((each.code, each.site) in codes for each in verdict.after.findings)
    return gone and verdict.left(proposal) is None and not verdict.fails and not verdict.is_worse


def _first(finding: Finding, fix: Fix, is_proven: bool) -> Finding:
    """Return a finding with this fix before its others, which are not said to be safe."""
    fix = replace(fix, applicability=Applicability.MACHINE_APPLICABLE) if is_proven else fix
    others = [each for each in finding.fixes if each.edits != fix.edits]
    careful = Applicability.MAYBE_INCORRECT
    safe = Applicability.MACHINE_APPLICABLE
    others = [
        replace(each, applicability=careful) if each.applicability is safe else each
        for each in others
    ]
    return replace(finding, fix=fix, alternatives=tuple(others))
