"""Ranks the fixes of a finding by what happens when the program runs with each."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import NamedTuple, TypeAlias

from gradscope.errors import GradscopeError
from gradscope.fixing import births
from gradscope.fixing.candidates import Search
from gradscope.fixing.edits import with_call
from gradscope.fixing.patch import all_of, read
from gradscope.fixing.plan import Candidate, Proposal, alone, none_held, plan
from gradscope.fixing.rehearsal import Spot, Trace
from gradscope.fixing.runs import LEAST_SECONDS, REFUSED, Bounds, Program, Run, Start
from gradscope.fixing.verify import (
    FEW_CALLS,
    FEWEST_CALLS,
    LEAST_CALLS,
    MOST_REHEARSED,
    Verdict,
    compared,
    default_calls,
)
from gradscope.fixing.what_if import CONSTANT, MOST, OTHER, STALE, TARGET, UNSPOILT
from gradscope.formatting import firsts, gathered, listed
from gradscope.model import Applicability, Finding, Fix, FixKind, Proof, Recording, Severity

_HAZARDS = frozenset({"GS101", "GS102", "GS103", "GS201", "GS202"})
_LEAKS = frozenset({"GS301", "GS302", "GS304", "GS305"})
_CHEAPEST = (
    *(FixKind.CREATE_GRAPH, FixKind.RESET, FixKind.NO_GRAD, FixKind.CLONE, FixKind.DETACH),
    *(FixKind.ITEM, FixKind.REORDER, FixKind.SUM_LOSSES, FixKind.RETAIN_GRAPH, FixKind.RECOMPUTE),
)
"""What builds less of a graph comes first, then what builds as much, then what keeps it for the
next call, and what computes it twice.
"""
_FIRST: tuple[FixKind, ...] = (FixKind.CREATE_GRAPH, FixKind.RESET)
"""What trains by a derivative, or empties what is summed, is tried before smaller changes."""
# Fixes of one finding that are tried, small changes first: each takes a run of the program and,
# if it mends, a rehearsal. The search ends earlier at one that leaves the training as it was.
_MOST_TRIED = 6
# Seconds that are left of a search that is to be over soon, or at once: each of its runs makes
# fewer backward calls, so that there is one of a program that takes 50 ms for each.
_SOON, _AT_ONCE = 60.0, 8.0
# Fixes of one kind that are shown where one held: what was not tried of them does the same at
# another place, and five lines that read alike help nobody to choose.
_MOST_ALIKE = 2


# Several edits mend most programs. In this one, `b(h.detach())` takes the second loss from `body`
# (``trains``); `retain_graph=True` at the first call takes nothing, and the second one frees all:
#
#     h = body(x)
#     a(h).sum().backward()
#     b(h).sum().backward()
#
# With `state = cell(x, state)` in a loop, `retain_graph=True` keeps each graph (``keeps``), and
# each call runs through all of them (``carries``); `state.detach()` does neither. In the next
# program, `loss.item()` ends the leak as `loss.detach()` does, but behind the calls that are tried,
# the last line fails (``may_fail``):
#
#     for x in data:
#         loss = net(x).mean()
#         losses.append(loss)
#         ...
#     print(torch.stack(losses).mean())
class Rank(NamedTuple):
    """How the program ran with a fix; lower is better."""

    left: int
    """Findings that it does not mend, and others do."""
    keeps: bool
    """Whether it keeps graphs that no call frees, or that are not those of the good steps."""
    trains: int
    """0: each step uses the gradients of before; 1: those of the losses that are meant; 2: less."""
    may_fail: bool
    """Whether what comes after a bounded run may want a tensor where there is a number now."""
    carries: bool
    """Whether graphs of earlier iterations are still there when one runs backward."""
    place: int
    """Its place among what was found: small changes come first, then cheap ones."""


def _with(finding: Finding, record: Trace, search_at: Callable[[Spot], Search]) -> Finding:
    """Return a finding with what the rehearsal found among its fixes, the smaller changes first,
    but the best of each kind before the next one of any. What says in words what to do is last.
    """
    if finding.fix is not None and finding.fix.proof is Proof.HELD:
        return finding
    found: dict[FixKind, list[Fix]] = {}
    order: tuple[FixKind, ...] = _CHEAPEST
    first = _FIRST
    if finding.code in _LEAKS:
        found = _of_leak(finding, record)
    elif finding.code in _HAZARDS and (spot := _fails_at(finding)) is not None:
        search = search_at(spot)
        if not search.fails:  # nothing went wrong in the rehearsal, so no fix can be checked there
            return finding
        found = search.options(finding)
        # A part that several calls share is to be retained, and not to be computed once for each.
        if search.is_only_read or search.is_shared:
            found[FixKind.RECOMPUTE] *= not found[FixKind.RETAIN_GRAPH]
        if search.is_shared and found[FixKind.REORDER]:  # calls keep the graph for one another
            found[FixKind.DETACH] = []
        if search.is_built_once:  # computing it anew uses the parameters as steps have left them
            first = (*first, FixKind.RECOMPUTE)
    if finding.fix is not None and finding.fix.kind is FixKind.ITEM:
        order = (FixKind.ITEM, *order)
    edits = [fix for fix in (*finding.fixes, *chain(*found.values())) if fix.edits]
    written = firsts(edits, lambda fix: fix.edits).values()
    own = gathered(written, lambda fix: fix.kind)

    def rank(fix: Fix) -> tuple[int, bool, int, int]:
        cost = order.index(fix.kind) if fix.kind in order else len(order)
        return own[fix.kind].index(fix), fix.kind not in first, _lines(fix), cost

    words = [fix for fix in finding.fixes if not fix.edits]
    return finding.with_fixes([*sorted(written, key=rank), *words])


def _lines(fix: Fix) -> int:
    """Return how many new lines a fix writes; lines that it only moves do not count."""
    written, there = Counter[str](), Counter[str]()
    for edit in fix.edits:
        written.update(line.strip() for line in edit.replacement.splitlines())
        with suppress(OSError, SyntaxError, ValueError):
            old = read(edit.file).lines[edit.line - 1 : edit.end_line]
            there.update(line.strip() for line in old)
    return max(1, (written - there).total())


def _of_leak(finding: Finding, record: Trace) -> dict[FixKind, list[Fix]]:
    """Return the fixes that release the graphs which a line keeps alive."""
    found: dict[FixKind, list[Fix]] = defaultdict(list)
    search = Search(record, ("", 0))
    # GS301: the graph continues from iteration to iteration, and is cut where gradients flow on.
    # Others are only stored, so what is stored can be detached without any loss of gradients.
    is_chain = finding.code == "GS301"
    effects = () if is_chain else (UNSPOILT,)
    if is_chain:
        found[FixKind.DETACH] += search.let_go()
    sites = [finding.site, *(each.site for each in finding.related if each.role == "held_by")]
    lines = {(site.file, site.line): None for site in sites if site is not None}
    near = [n for n in record.given if (record.places[n].file, record.places[n].line) in lines]
    cuts = {number: search.effect(number) for number in near}
    at = [n for n, e in cuts.items() if (e.is_fruitful if is_chain else e.is_harmless)]
    one = [n for n in at if is_chain or search.lets_go(n, near)]
    one.sort(key=lambda n: (len(search.value(n)), len(record.places[n].text), n))
    single = [sorted(search.value(n)) for n in one]
    kept = search.kept_at()
    together = [n for n in kept if n in at]

    def offer(several: Sequence[int]) -> None:
        texts = listed([f"`{record.places[n].text}`" for n in several])
        forms = [(FixKind.DETACH, "detach", f"store {texts} detached")]
        if all(record.kinds.get(n) == frozenset({"number"}) for n in several):
            forms.append((FixKind.ITEM, "item", f"store the value of {texts}, with item()"))
        for kind, method, message in forms:
            edits = all_of(with_call(record.places[n], record.kinds[n], method) for n in several)
            if edits:
                fix = Fix(kind, message, edits, Applicability.MAYBE_INCORRECT, effects)
                found[kind].append(fix)

    for several in [*([together] if len(together) > 1 else []), *single] or [kept]:
        offer(several)
    # The line stores an object with a tensor in it, ``history.append(Step(state))``, which cannot
    # be detached itself: detach what is put into the object.
    if not (is_chain or any(found.values())):
        for several in ([n] for n in search.put_into(near) if n not in near):
            offer(several)
    found[FixKind.NO_GRAD] = search.without_graph(lines)
    return {kind: fixes[:MOST] for kind, fixes in found.items()}


def _fails_at(finding: Finding) -> Spot | None:
    """Return the line of the call that fails or will fail."""
    site = finding.site
    if finding.code in ("GS102", "GS202"):
        named = {each.role: each.site for each in finding.related}
        site = named.get("failing_node") or named.get("next_read") or site
    return None if site is None else (site.file, site.line)


def improved(
    recording: Recording,
    seconds: float,
    tell: Callable[[str], None],
    start: Start,
    *,
    sandboxed: bool,
) -> tuple[Recording, Trace | None]:
    """Search for fixes of a recording's findings, by a rehearsal and by runs with each fix applied.

    Return the recording with the fixes that passed as the first ones of each finding, or with the
    reason why there are none; and the trace of the rehearsal, if that ended by itself. The search
    takes at most ``seconds``. If ``sandboxed``, its runs change nothing outside of their processes.
    ``tell`` is called with what begins. Raise GradscopeError if the program cannot be run again.
    """
    program = Program(recording.header, sandboxed, start)
    program.check()
    end = time.monotonic() + seconds
    if any(each.is_born and each.counts for each in recording.findings):
        recording = births.improved(recording, program, end, tell)
        if all(each.is_born for each in recording.findings):
            return recording, None
    tell("rehearses the run, to find a fix")
    try:
        record = program.rehearse(Bounds(_enough_calls(recording), seconds))
    except GradscopeError as failure:
        tell(str(failure))
        return _settled(recording, {}, str(failure)), None
    search_at = cache(partial(Search, record))  # an error and the warning before it share a search
    own = (_with(each, record, search_at) for each in recording.findings)
    found = replace(recording, findings=tuple(own))
    tried, why = _tried(found, record, end, tell, program)
    if record.stopped:
        tell(f"the rehearsal {record.ended}")
        why = f"the rehearsal {record.ended}; `gradscope fix --yes` lets it"
    return _settled(found, tried, why), None if record.stopped else record


def _enough_calls(recording: Recording) -> int:
    """Return for how many calls to rehearse, so that what keeps graphs shows; 0 means up to the
    call that fails, if one does.
    """
    found = [each for each in recording.findings if each.is_to_mend]
    fails = any(each.severity is Severity.ERROR or each.predicts_error for each in found)
    return 0 if fails else max([MOST_REHEARSED, *(2 * each.backward_call for each in found)])


_Tried: TypeAlias = list[tuple[Rank | None, Fix]]
"""What trying the fixes of one proposal has shown; no outcome of what does not hold."""


def _tried(
    recording: Recording, record: Trace, end: float, tell: Callable[[str], None], program: Program
) -> tuple[dict[int, _Tried], str]:
    """Return, by finding, the result of trying its fixes, and why some were not tried."""
    proposed = plan(recording)
    left = end - time.monotonic()
    least = LEAST_CALLS if left > _SOON else FEW_CALLS if left > _AT_ONCE else FEWEST_CALLS
    bounds = Bounds(default_calls(proposed.proposals, least), 0)
    before = Run(recording, (), recording.outcome.exit_status, "")
    every, results, why = proposed.proposals, dict[int, _Tried](), ""
    grave = [p for p in every if any(e.is_to_mend and not e.is_born for e in p.findings)]
    for proposal in grave:
        shown: _Tried = []
        results |= dict.fromkeys(map(id, proposal.findings), shown)
        own = [c for c in proposal.candidates if c.can_be_tried]
        waiting, tried = own[:_MOST_TRIED], set[int]()
        while waiting:
            left = end - time.monotonic()
            if left < LEAST_SECONDS:
                why = "no time was left"
                break
            candidate = waiting.pop(0)
            tried.add(candidate.number)
            tell(f"tries fix {candidate.number}")
            with_it = alone(proposed, proposal, candidate)
            after = program.run(with_it.changes, Bounds(bounds.calls, left))
            if after.exit_status in (None, REFUSED):
                why = "it would change files" if after.exit_status else "the run took too long"
                continue
            verdict = Verdict(with_it, bounds, before, after)
            if verdict.mends(proposal):
                verdict = compared(verdict, program, record, end - time.monotonic())
                if verdict.comparison is None:
                    why = "no time was left to see what it trains"
                    continue
            others = [other for other in grave if other is not proposal and verdict.left(other)]
            shown.append(_outcome(candidate, verdict, proposal, len(others)))
            held = [outcome for outcome, _ in shown if outcome]
            if any(outcome < (0, False, 0, False, True) for outcome in held):
                break  # what comes later is larger, or costs more
            # What mends that as well is better: mostly it is stored with its graph.
            numbers = tried.union(c.number for c in waiting)
            more = [c for p in others if (c := p.chosen).can_be_tried and c.number not in numbers]
            waiting = [*more, *waiting] if held else waiting
    return results, why


def _outcome(
    candidate: Candidate, verdict: Verdict, proposal: Proposal, others: int
) -> tuple[Rank | None, Fix]:
    """Return what became of a fix that was tried, which says from now on whether it held."""
    fix, comparison = candidate.fix, verdict.comparison
    if comparison is None:
        return None, fix
    if verdict.refused and TARGET not in fix.effects:
        return None, replace(fix, proof=Proof.TRAINS_OTHERWISE)
    is_more = fix.kind is FixKind.CREATE_GRAPH  # it trains by the derivative, as it should
    is_other = not {OTHER, CONSTANT, STALE}.isdisjoint(fix.effects)
    is_equal = (comparison.is_equal or is_more) and not is_other
    trains = 2 if comparison.differences else 1 - is_equal
    keeps = fix.kind is FixKind.RETAIN_GRAPH and (comparison.keeps or not is_equal)
    may_fail = fix.kind is FixKind.ITEM and verdict.after.calls >= verdict.bounds.calls
    if not (may_fail or is_other or TARGET in fix.effects):
        fix = replace(fix, applicability=Applicability.MACHINE_APPLICABLE)
    place = candidate.number if candidate in proposal.candidates else len(proposal.candidates)
    outcome = Rank(others, keeps, trains, may_fail, comparison.carries, place)
    return outcome, replace(fix, proof=Proof.HELD)


def _settled(recording: Recording, tried: dict[int, _Tried], why: str) -> Recording:
    """Return the recording with what held first, and without what failed."""

    def settled(finding: Finding) -> Finding:
        if finding.is_born:
            return finding
        shown = tried.get(id(finding), [])
        fixes = [*_fixes(finding, shown)]
        changed = replace(finding.with_fixes(fixes), untried="")
        if not changed.is_to_mend:
            return changed
        words_first = sorted(fixes, key=lambda fix: bool(fix.edits))
        return replace(changed.with_fixes(words_first), untried=_why_not(shown, why))

    return replace(recording, findings=tuple(map(settled, recording.findings)))


def _fixes(finding: Finding, shown: _Tried) -> Iterator[Fix]:
    held = [fix for outcome, fix in sorted(shown, key=lambda each: each[0] or ()) if outcome]
    yield from held
    known, told = {fix.edits for _, fix in shown}, Counter(fix.kind for fix in held)
    for fix in finding.fixes:
        if not fix.edits:
            yield from () if held else (fix,)
        elif fix.edits not in known and not (held and told[fix.kind] >= _MOST_ALIKE):
            told[fix.kind] += 1
            yield fix
    yield from (fix for _, fix in shown if fix.proof is Proof.TRAINS_OTHERWISE)


def _why_not(shown: _Tried, why: str) -> str:
    """Return why no fix of a finding was tried and held."""
    tried = sum(outcome is None for outcome, _ in shown)
    if why or not tried:
        return f"not tried: {why or 'the rehearsal found no edit'}"
    return none_held(tried)
