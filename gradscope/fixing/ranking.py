"""Orders what can be done about a finding: by a rehearsal of the run, and by trying what that
finds.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from gradscope.errors import GradscopeError
from gradscope.fixing.candidates import Search
from gradscope.fixing.edits import text_at, with_call
from gradscope.fixing.pieces import all_of
from gradscope.fixing.plan import Plan, plan, replanned
from gradscope.fixing.rehearsal import Record, Spot
from gradscope.fixing.runs import REFUSED, Bounds, Program, Run, Start, start_process
from gradscope.fixing.trials import CONSTANT, MOST, OTHER, SPOILT, TARGET, UNSPOILT
from gradscope.fixing.verify import Verdict, compared, default_calls
from gradscope.model import Applicability, Finding, Fix, FixKind, Recording, Severity
from gradscope.rules.gs102 import is_constant
from gradscope.units import listed

_HAZARDS = frozenset({"GS101", "GS102", "GS103", "GS201", "GS202"})
_LEAKS = frozenset({"GS301", "GS302", "GS304", "GS305"})
_MEANT = frozenset({FixKind.ITEM, FixKind.NO_GRAD, FixKind.REORDER, FixKind.CLONE})
"""What a cut would do as well, and these say better: a number is wanted, an average is computed, a
step comes too early, a value is overwritten.
"""
_COSTS = frozenset({CONSTANT, OTHER, SPOILT})
_MOST_TRIED = 6
_LEAST_SECONDS = 2.0


def with_options(recording: Recording, record: Record) -> Recording:
    """Return the recording with what the rehearsal found among the fixes of its hazards."""
    findings = tuple(_with(finding, record) for finding in recording.findings)
    return replace(recording, findings=findings)


def _with(finding: Finding, record: Record) -> Finding:
    if finding.code in _LEAKS:
        # What reads the value later may want a tensor.
        order = _ordered(finding.fixes, _of_leak(finding, record), (FixKind.DETACH,), meant=())
    elif finding.code in _HAZARDS and (spot := _fails_at(finding)) is not None:
        search = Search(record, spot)
        if not search.fails:  # in the rehearsal nothing went wrong: there is nothing to mend
            return finding
        options = search.options(finding)
        is_target = any(TARGET in fix.effects for fix in options[FixKind.DETACH])
        # What is meant to be trained must be built each time.
        is_trained = search.is_built_once and not (is_target or is_constant(finding))
        cut = (FixKind.NO_GRAD, FixKind.DETACH, FixKind.CLONE)
        anew = (FixKind.SUM_LOSSES, FixKind.RECOMPUTE)
        later = (FixKind.REORDER,) if search.is_shared else ()
        first = (*later, FixKind.CREATE_GRAPH, *(anew if is_trained else cut))
        sooner = (FixKind.RETAIN_GRAPH,) if search.is_only_read else first
        costs = _COSTS - {SPOILT} if search.is_carried else _COSTS
        order = _ordered(finding.fixes, options, sooner, costs=costs)
    else:
        return finding
    fixes = [*{fix.edits or fix: fix for fix in reversed([*order])}.values()][::-1]
    return replace(finding, fix=fixes[0], alternatives=tuple(fixes[1:])) if fixes else finding


def _of_leak(finding: Finding, record: Record) -> dict[FixKind, list[Fix]]:
    """Return what lets go of the graphs that a line keeps."""
    found: dict[FixKind, list[Fix]] = defaultdict(list)
    search = Search(record, ("", 0))
    is_chain = finding.code == "GS301"  # it is cut where gradients go on
    effects = () if is_chain else (UNSPOILT,)
    if is_chain:
        found[FixKind.DETACH] += search.let_go()
    sites = [finding.site, *(each.site for each in finding.related if each.role == "held_by")]
    lines = {(site.file, site.line): None for site in sites if site is not None}
    near = [n for n in record.given if (record.places[n].file, record.places[n].line) in lines]
    cuts = {number: search.effect(number) for number in near}
    at = [n for n, e in cuts.items() if (e.is_fruitful if is_chain else e.is_harmless)]
    one = [n for n in at if is_chain or search.lets_go(n, near)]
    one.sort(key=lambda n: (len(search.value(n)), len(text_at(record.places[n])), n))
    single = [sorted(search.value(n)) for n in one]
    kept = search.kept_at()
    together = [n for n in kept if n in at]
    for several in [*([together] if len(together) > 1 else []), *single] or [kept]:
        texts = listed([f"`{text_at(record.places[n])}`" for n in several])
        forms = [(FixKind.DETACH, "detach", f"store {texts} detached")]
        if all(record.kinds.get(n) == frozenset({"number"}) for n in several):
            forms.append((FixKind.ITEM, "item", f"store the value of {texts}, with item()"))
        for kind, method, message in forms:
            edits = all_of(with_call(record.places[n], record.kinds[n], method) for n in several)
            if edits:
                fix = Fix(kind, message, edits, Applicability.MAYBE_INCORRECT, effects)
                found[kind].append(fix)
    found[FixKind.NO_GRAD] = search.without_graph(lines)
    return {kind: fixes[:MOST] for kind, fixes in found.items()}


def _ordered(
    known: Sequence[Fix],
    found: dict[FixKind, list[Fix]],
    sooner: Sequence[FixKind],
    meant: Collection[FixKind] = _MEANT,
    costs: frozenset[str] = _COSTS,
) -> Iterator[Fix]:
    """Yield what was found, by kinds: as the facts of the failure have it, but what loses nothing
    comes ``sooner``. Where nothing was found of a kind that the facts name, its words stand.
    """
    words = {fix.kind: fix for fix in reversed(known)}
    first = [fix.kind for fix in known[:1] if fix.kind in meant]
    free = (k for k in sooner if (own := found.get(k)) and costs.isdisjoint(own[0].effects))
    kinds = dict.fromkeys((*first, *free, *(fix.kind for fix in known), *found))
    # What only words say comes behind what was seen to mend it; graphs are kept as a last resort.
    last = {FixKind.RETAIN_GRAPH} - {*sooner, *(fix.kind for fix in known[:1])}
    for kind in sorted(kinds, key=lambda kind: not found.get(kind) or kind in last):
        word = words.get(kind)
        if not found.get(kind):
            yield from () if word is None else (word,)
            continue
        for fix in found[kind]:
            yield fix if word is None else replace(fix, reason=word.reason or fix.reason)


def _fails_at(finding: Finding) -> Spot | None:
    """Return the line of the call that fails, or will."""
    site = finding.site
    if finding.code in ("GS102", "GS202"):
        named = {each.role: each.site for each in finding.related}
        site = named.get("failing_node") or named.get("next_read") or site
    return None if site is None else (site.file, site.line)


def improved(
    recording: Recording, seconds: float, tell: Callable[[str], None], start: Start = start_process
) -> Recording:
    """Return the recording with fixes that a rehearsal has found, and those first that held when
    they were tried; all within so many seconds, and without a change outside the processes.

    ``tell`` is called with what begins. Raise GradscopeError if the program cannot be run again.
    """
    program = Program(recording.header, guarded=True, start=start)
    program.check()
    end = time.monotonic() + seconds
    tell("rehearses the run, to find a fix")
    record = None
    try:
        record = program.rehearse(Bounds(0, seconds))
        recording = with_options(recording, record)
        if record.stopped:
            tell(f"the rehearsal {record.ended}")
    except GradscopeError as failure:
        tell(str(failure))
    return _tried(recording, record, end, tell, program)


def _tried(
    recording: Recording,
    record: Record | None,
    end: float,
    tell: Callable[[str], None],
    program: Program,
) -> Recording:
    """Return the recording with the first fix of each finding that holds as its first one."""
    proposed = plan(recording)
    bounds = Bounds(default_calls(proposed.proposals), 0)
    before = Run(recording, (), recording.outcome.exit_status, "")
    held: dict[int, Fix] = {}
    grave = [p for p in proposed.proposals if p.finding.severity is not Severity.ADVICE]
    for proposal in grave:
        waiting = [c for c in proposal.candidates if c.can_be_tried][:_MOST_TRIED]
        least, tried = 0, set[int]()
        while waiting:
            candidate = waiting.pop(0)
            tried.add(candidate.number)
            left = end - time.monotonic()
            if left < _LEAST_SECONDS:
                break
            tell(f"tries fix {candidate.number}")
            alone = proposal._replace(chosen=candidate, problem="")
            with_it = replanned(recording, Plan((alone,), ()), [candidate.number])
            after = program.run(with_it.changes, Bounds(bounds.calls, left))
            verdict = Verdict(with_it, bounds, before, after)
            if after.exit_status in (None, REFUSED) or not verdict.mends(proposal):
                continue
            fix = candidate.fix
            if record is not None and after.exit_status == 0:
                verdict = compared(verdict, program, record, end - time.monotonic())
            if verdict.refused and TARGET not in fix.effects:  # it would train something else
                continue
            # What comes after a bounded run may want a tensor where there is a number now.
            is_whole = fix.kind is not FixKind.ITEM or after.calls < bounds.calls
            if verdict.comparison is not None and is_whole and not {OTHER, TARGET} & {*fix.effects}:
                fix = replace(fix, applicability=Applicability.MACHINE_APPLICABLE)
            others = [other for other in grave if other is not proposal and verdict.left(other)]
            if id(proposal.finding) not in held or len(others) < least:
                held |= dict.fromkeys(map(id, proposal.findings), fix)
                least = len(others)
            if not others:
                break
            # What mends that as well is better: mostly it is stored with its graph.
            waiting = [c for p in others if (c := p.chosen).can_be_tried and c.number not in tried]
    findings = (_first(finding, held.get(id(finding))) for finding in recording.findings)
    return replace(recording, findings=tuple(findings))


def _first(finding: Finding, held: Fix | None) -> Finding:
    """Return a finding with what held as its first fix, and then the best fix of each kind before
    the next one of any.
    """
    fixes, known = [*finding.fixes], Counter[FixKind]()
    if held is not None:
        fixes = [held, *(fix for fix in fixes if fix.edits != held.edits)]
    turns: list[tuple[int, int, Fix]] = []
    for fix in fixes:
        turns.append((known[fix.kind], len(turns), fix))
        known[fix.kind] += 1
    ordered = tuple(fix for *_, fix in sorted(turns, key=lambda turn: turn[:2]))
    return replace(finding, fix=ordered[0], alternatives=ordered[1:]) if fixes else finding
