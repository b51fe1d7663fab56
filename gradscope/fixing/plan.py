"""Lists the fixes of a recording, and decides which apply to the files as they are now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count, starmap
from typing import NamedTuple

from gradscope.errors import GradscopeError
from gradscope.fixing.patch import Patch, Source, apply, bare, read, same_lines, shown_lines, split
from gradscope.formatting import counted, firsts, gathered, listed
from gradscope.model import Edit, Finding, Fix, Recording, Severity

ADVICE = "is for advice, which is followed only if asked for: name it with --finding or --pick"
CODE = "<string>"
"""The name that Python gives to the code of ``-c``."""


class Candidate(NamedTuple):
    """One way to fix a finding, by its number among all of the list; ``problem`` is why its edits
    cannot be applied.
    """

    number: int
    fix: Fix
    problem: str = ""

    @property
    def can_be_tried(self) -> bool:
        """Whether it has edits that apply to the files as they are."""
        return bool(self.fix.edits) and not self.problem

    @property
    def place(self) -> tuple[str, int]:
        """The first line that it changes; no file where it changes none."""
        return (self.fix.edits[0].file, self.fix.edits[0].line) if self.fix.edits else ("", 0)


class Proposal(NamedTuple):
    """What can be done about some findings, the gravest first, and which of it is ``chosen``.

    ``problem`` is why that does not apply.
    """

    number: int
    findings: tuple[Finding, ...]
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    problem: str = ""

    @property
    def finding(self) -> Finding:
        """The finding that the fix is shown for."""
        return self.findings[0]

    @property
    def fix(self) -> Fix:
        """The fix that is chosen."""
        return self.chosen.fix

    @property
    def applies(self) -> bool:
        """Whether the fix is a part of the change."""
        return bool(self.fix.edits) and not self.problem

    @property
    def hazard(self) -> str:
        """What the finding is called: a failure, if it makes a call fail."""
        return "failure" if self.finding.code.startswith(("GS1", "GS2")) else "finding"

    @property
    def named(self) -> str:
        """How a sentence names it, by its number."""
        return f"{'the failure of ' if self.hazard == 'failure' else ''}finding {self.number}"

    @property
    def is_suppressed(self) -> bool:
        """Whether the user has suppressed all that it is about."""
        return all(finding.suppression for finding in self.findings)

    def held_back(self, why: str) -> Proposal:
        """Return it with none of its edits to be applied."""
        candidates = (c._replace(problem=why) if c.fix.edits else c for c in self.candidates)
        own = {candidate.number: candidate for candidate in candidates}
        return self._replace(candidates=tuple(own.values()), chosen=own[self.chosen.number])


class Plan(NamedTuple):
    """The proposals of a recording, and the changes of those that apply, one for each file."""

    proposals: tuple[Proposal, ...]
    changes: tuple[Patch, ...]
    notes: tuple[str, ...]
    sources: _Sources

    @property
    def applied(self) -> tuple[Proposal, ...]:
        """The proposals whose edits are in the changes."""
        return tuple(proposal for proposal in self.proposals if proposal.applies)

    def candidate(self, number: int) -> Candidate:
        """Return a candidate by its number."""
        return next(c for p in self.proposals for c in p.candidates if c.number == number)

    @property
    def can_be_tried(self) -> bool:
        """Whether any candidate has edits that apply."""
        return any(c.can_be_tried for proposal in self.proposals for c in proposal.candidates)

    @property
    def advice(self) -> tuple[str, ...]:
        """The codes of the advice that has edits, and was not asked for."""
        return tuple(p.finding.code for p in self.proposals if p.problem == ADVICE)


def plan(recording: Recording, chosen: str | None = None, picks: Sequence[int] = ()) -> Plan:
    """Return what can be done about the findings, or about those that ``chosen`` names by number or
    code, with the first candidate of each, or that of ``picks``. What is suppressed is left out, if
    it is not named.

    Raise GradscopeError if there is no such finding, or no such candidate.
    """
    sources = _Sources(recording)
    proposals = _chosen(_proposals(recording.findings, sources), chosen)
    if chosen is None:
        named = {p.number for p in proposals if any(c.number in picks for c in p.candidates)}
        proposals = [p for p in proposals if not p.is_suppressed or p.number in named]
        mere = (p for p in proposals if p.finding.severity is Severity.ADVICE)
        advice = {p.number for p in mere if not p.finding.is_to_mend} - named
        proposals = [p.held_back(ADVICE) if p.number in advice else p for p in proposals]
    known = {c.number: p.number for p in proposals for c in p.candidates}
    for pick in picks:
        if pick not in known:
            numbers = listed(map(str, known), most=len(known))
            there = f"choose one of {numbers}" if known else "there is none"
            raise GradscopeError(f"there is no fix {pick}: {there}")
        if any(known[pick] == known[other] for other in picks if other != pick):
            raise GradscopeError("pick one fix for a finding, not two")
    return _settled(proposals, set(picks), sources)


def replanned(old: Plan, candidate: Candidate) -> Plan:
    """Return the plan with another candidate of one of its proposals."""
    return _settled(old.proposals, {candidate.number}, old.sources)


def alone(old: Plan, proposal: Proposal, candidate: Candidate) -> Plan:
    """Return the plan that writes one candidate for a proposal, and nothing else."""
    return _settled([proposal._replace(chosen=candidate)], set(), old.sources)


def without(old: Plan, left_out: Collection[Proposal], why: str) -> Plan:
    """Return the plan without the changes for some proposals."""
    left = [p.held_back(why) if p in left_out else p for p in old.proposals]
    return _settled(left, set(), old.sources)


def _settled(proposals: Sequence[Proposal], picks: set[int], sources: _Sources) -> Plan:
    taken: dict[tuple[str, int], int] = {}
    settled = []
    for proposal in proposals:
        picked = (c for c in proposal.candidates if c.number in picks)
        candidate = next(picked, proposal.chosen)
        edits = candidate.fix.edits
        problem = candidate.problem or _overlap(edits, taken)
        settled.append(proposal._replace(chosen=candidate, problem=problem))
        if edits and not problem:
            taken |= dict.fromkeys(_lines(edits), proposal.number)
    edits = tuple(edit for proposal in settled if proposal.applies for edit in proposal.fix.edits)
    by_file = gathered(edits, lambda edit: edit.file)
    changes = tuple(apply(sources[file], own) for file, own in by_file.items())
    newer = filter(sources.is_newer, by_file)
    notes = tuple(f"{file} has changed since the recording, at other lines" for file in newer)
    return Plan(tuple(settled), changes, notes, sources)


def _proposals(findings: Iterable[Finding], sources: _Sources) -> list[Proposal]:
    """Return the findings grouped by what is changed: a prediction and its failure have one."""
    groups: dict[object, list[Finding]] = {}
    for place, finding in enumerate(findings):
        if finding.fix is not None:
            same = finding.fixes if any(fix.edits for fix in finding.fixes) else place
            key = finding.fix.edits or (finding.fix, same)
            groups.setdefault(key, []).append(finding)
    proposals: list[Proposal] = []
    numbers = count(1)
    for number, found in enumerate(groups.values(), 1):
        group = tuple(sorted(found, key=lambda finding: finding.severity.rank))
        fixes = ((fix, sources.problem(fix.edits)) for fix in _fixes(group))
        candidates = tuple(Candidate(next(numbers), fix, problem) for fix, problem in fixes)
        proposals.append(Proposal(number, group, candidates, candidates[0]))
    return proposals


def _fixes(findings: Iterable[Finding]) -> list[Fix]:
    """Return the fixes of some findings, in their order; of those that change the same, one."""
    fixes = (fix for finding in findings for fix in finding.fixes)
    return list(firsts(fixes, lambda fix: fix.edits or (fix.kind, fix.message)).values())


def _chosen(proposals: list[Proposal], chosen: str | None) -> list[Proposal]:
    if chosen is None:
        return proposals
    codes = {p.number: dict.fromkeys(each.code for each in p.findings) for p in proposals}
    picked = [p for p in proposals if chosen == str(p.number) or chosen.upper() in codes[p.number]]
    if not picked:
        known = [f"{number} ({listed(own)})" for number, own in codes.items()]
        there = f"choose one of {', '.join(known)}" if known else "the recording has none"
        raise GradscopeError(f"there is no finding {chosen!r}: {there}")
    return picked


def _overlap(edits: Iterable[Edit], taken: Mapping[tuple[str, int], int]) -> str:
    first = min((taken[line] for line in _lines(edits) if line in taken), default=None)
    if first is None:
        return ""
    return f"waits for fix {first}, which changes the same lines: apply that one and record again"


def _lines(edits: Iterable[Edit]) -> list[tuple[str, int]]:
    """Return the lines that edits replace, each as often as one does."""
    return [(edit.file, line) for edit in edits for line in edit.lines]


class _Sources:
    """The files that edits are for, as they are now and as they were recorded."""

    def __init__(self, recording: Recording) -> None:
        code = recording.header.code
        given = {} if code is None else {CODE: f"{code}\n"}
        self._texts = recording.sources | given
        self._now = {file: Source(file, split(text)) for file, text in given.items()}

    def __getitem__(self, file: str) -> Source:
        if file not in self._now:
            self._now[file] = read(file)
        return self._now[file]

    def problem(self, edits: tuple[Edit, ...]) -> str:
        """Return why the edits cannot be applied; empty if they can be."""
        lines = _lines(edits)
        if len(set(lines)) < len(lines):
            return "cannot be applied: it has two edits of one line"
        by_file = gathered(edits, lambda edit: edit.file)
        problem = next(filter(None, starmap(self._problem, by_file.items())), "")
        return problem and f"cannot be applied: {problem}"

    def _problem(self, file: str, edits: list[Edit]) -> str:
        recorded = self._recorded(file)
        if recorded is None:
            return f"the recording has no source of {file} to compare with"
        try:
            now = self[file]
        except OSError as error:
            return f"{file} cannot be read ({error.strerror}); put it back, or record again"
        except (SyntaxError, ValueError):
            return f"{file} is not Python source any more; record again"
        lines = tuple(bare(line) for line in now.lines)
        is_inside = max(edit.end_line for edit in edits) <= len(recorded)
        if not is_inside or not same_lines(lines, recorded, shown_lines(edits)):
            return f"{file} has changed at these lines since the recording; record again"
        try:
            apply(now, edits).after.data  # noqa: B018 - asked for the error
        except UnicodeEncodeError:
            return f"its text has no place in the encoding of {file}, {now.encoding}"
        return ""

    def is_newer(self, file: str) -> bool:
        """Return whether the file differs anywhere from what was recorded."""
        return tuple(bare(line) for line in self[file].lines) != self._recorded(file)

    def _recorded(self, file: str) -> tuple[str, ...] | None:
        text = self._texts.get(file)
        return None if text is None else tuple(bare(line) for line in split(text))


def none_held(tried: int) -> str:
    """Say that none of the edits that were tried mended the finding."""
    return f"of {counted(tried, 'edit')} that {'was' if tried == 1 else 'were'} tried, none held"
