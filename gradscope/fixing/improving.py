"""Improves the fixes of a run that has ended: rehearses it, and tries what is proposed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gradscope.errors import GradscopeError
from gradscope.fixing.plan import Plan, plan, replanned
from gradscope.fixing.ranking import with_options
from gradscope.fixing.rehearsal import Record
from gradscope.fixing.runs import REFUSED, Bounds, Run, Start, check, rehearse, run, start_process
from gradscope.fixing.verify import Verdict, compared, default_calls
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
    record = None
    try:
        record = rehearse(recording, Bounds(0, seconds), guarded=True, start=start)
        recording = with_options(recording, record)
        if record.stopped:
            tell(f"the rehearsal {record.ended}")
    except GradscopeError as failure:
        tell(str(failure))
    return _tried(recording, record, end, tell, start)


def _tried(
    recording: Recording,
    record: Record | None,
    end: float,
    tell: Callable[[str], None],
    start: Start,
) -> Recording:
    """Return the recording with the first fix of each finding that holds as its first one."""
    proposed = plan(recording)
    bounds = Bounds(default_calls(proposed.proposals), 0)
    ended = recording.outcome.exit_status
    before = Run(recording, (), ended, "")
    held: dict[int, Fix] = {}
    for proposal in proposed.proposals:
        if proposal.finding.severity is Severity.ADVICE:
            continue
        for candidate in [c for c in proposal.candidates if c.can_be_tried][:_MOST_TRIED]:
            left = end - time.monotonic()
            if left < _LEAST_SECONDS:
                break
            tell(f"tries fix {candidate.number}")
            alone = replace(proposal, chosen=candidate, problem="")
            with_it = replanned(recording, Plan((alone,), ()), [candidate.number])
            within = Bounds(bounds.calls, left)
            after = run(recording, with_it.changes, within, guarded=True, start=start)
            verdict = Verdict(with_it, bounds, before, after)
            if after.exit_status in (None, REFUSED) or not verdict.mends(proposal):
                continue
            fix = candidate.fix
            if record is not None and after.exit_status == 0:
                left = end - time.monotonic()
                verdict = compared(verdict, recording, record, left, guarded=True, start=start)
            if verdict.refused:  # it would train something else
                continue
            if verdict.comparison is not None:
                fix = replace(fix, applicability=Applicability.MACHINE_APPLICABLE)
            held |= dict.fromkeys(map(id, proposal.findings), fix)
            break
    findings = (_with(f, held[id(f)]) if id(f) in held else f for f in recording.findings)
    return replace(recording, findings=tuple(findings))


def _with(finding: Finding, held: Fix) -> Finding:
    """Return a finding with what held as its first fix."""
    others = (fix for fix in finding.fixes if fix.edits != held.edits)
    return replace(finding, fix=held, alternatives=tuple(others))
