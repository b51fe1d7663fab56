"""Orders what can be done about a finding: what is proposed first, and what behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradscope.fixing.candidates import CONSTANT, SPOILT, Search, is_constant, of_leak
from gradscope.fixing.rehearsal import Record, Spot
from gradscope.model import Finding, Fix, FixKind, Recording

_HAZARDS = frozenset({"GS101", "GS102", "GS103", "GS201", "GS202"})
_LEAKS = frozenset({"GS301", "GS302", "GS304", "GS305"})
_MEANT = frozenset({FixKind.ITEM, FixKind.NO_GRAD, FixKind.REORDER, FixKind.CLONE})
"""What a cut would do as well, and these say better: a number is wanted, an average is computed, a
step comes too early, a value is overwritten.
"""


def with_options(recording: Recording, record: Record) -> Recording:
    """Return the recording with what the rehearsal found among the fixes of its hazards."""
    findings = tuple(_with(finding, record) for finding in recording.findings)
    return replace(recording, findings=findings)


def _with(finding: Finding, record: Record) -> Finding:
    if finding.code in _LEAKS:
        order = _ordered(finding.fixes, of_leak(finding, record), ())
    elif finding.code in _HAZARDS and (spot := _fails_at(finding)) is not None:
        search = Search(record, spot)
        if not search.fails:  # in the rehearsal nothing went wrong: there is nothing to mend
            return finding
        # What is meant to be trained must be built each time.
        is_trained = search.is_built_once and not is_constant(finding)
        cut = (FixKind.NO_GRAD, FixKind.DETACH, FixKind.CLONE)
        anew = (FixKind.SUM_LOSSES, FixKind.RECOMPUTE)
        sooner = (FixKind.CREATE_GRAPH, *(anew if is_trained else cut))
        order = _ordered(finding.fixes, search.options(finding), sooner)
    else:
        return finding
    fixes = [*{fix.edits or fix: fix for fix in reversed([*order])}.values()][::-1]
    return replace(finding, fix=fixes[0], alternatives=tuple(fixes[1:])) if fixes else finding


def _ordered(
    known: Sequence[Fix], found: dict[FixKind, list[Fix]], sooner: Iterable[FixKind]
) -> Iterator[Fix]:
    """Yield what was found, by kinds: as the facts of the failure have it, but what loses nothing
    comes ``sooner``. Where nothing was found of a kind that the facts name, its words stand.
    """
    words = {fix.kind: fix for fix in reversed(known)}
    first = [fix.kind for fix in known[:1] if fix.kind in _MEANT]
    costs = {CONSTANT, SPOILT}
    found_sooner = [k for k in sooner if (own := found.get(k)) and costs.isdisjoint(own[0].effects)]
    kinds = dict.fromkeys((*first, *found_sooner, *(fix.kind for fix in known), *found))
    # What only words say comes behind what was seen to mend it; graphs are kept as a last resort.
    last = {FixKind.RETAIN_GRAPH} - {fix.kind for fix in known[:1]}
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
