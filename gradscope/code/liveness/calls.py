"""Lists the calls that control can reach next, and the places where a name is assigned."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from types import CodeType

from gradscope.code import places
from gradscope.code.liveness.flow import Instruction, flow_of, level_after
from gradscope.code.liveness.survey import CallFact, survey_of
from gradscope.code.liveness.words import CallKind
from gradscope.model import Site


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the dotted name as written, the names among its arguments, its keywords.

    ``computed`` are the keywords whose values are no constants. ``offset`` is that of the
    instruction; ``after_back_edge``: only in a later iteration of a loop around the start.
    ``kind`` is what the call does with graphs, as its last name tells.
    """

    target: str
    site: Site
    offset: int
    arguments: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    computed: frozenset[str] = frozenset()
    after_back_edge: bool = False
    kind: CallKind = CallKind.UNKNOWN


def calls_after(code: CodeType, lasti: int) -> tuple[Call, ...]:
    """Return the calls that control can reach from just after ``lasti``, of functions with a name,
    nearest first.

    Those of a later iteration of a loop around it come last.
    """
    flow, calls = flow_of(code), survey_of(code).calls
    start = flow.index(lasti)
    loops = flow.loops_around(start)
    seen: dict[int, int] = {}  # instruction -> the number of loops whose next iteration has begun
    waiting = [(0, index, 0) for index in (flow.successors(start) if start >= 0 else (0,))]
    while waiting:
        distance, index, level = heapq.heappop(waiting)
        if seen.get(index, len(loops) + 1) <= level:
            continue
        seen[index] = level  # a plainer way may be found later; the order is that of the first
        for successor in flow.successors(index):
            heapq.heappush(
                waiting, (distance + 1, successor, level_after(loops, level, index, successor))
            )
    reached = sorted((index for index in seen if index in calls), key=lambda index: seen[index] > 0)
    found = (_call(code, index, calls[index], seen[index] > 0) for index in reached)
    return tuple(call for call in found if call.target or call.kind is not CallKind.UNKNOWN)


def call_at(code: CodeType, lasti: int) -> Call | None:
    """Return the call that instruction ``lasti`` makes; None where it is no call."""
    index = flow_of(code).index(lasti)
    fact = survey_of(code).calls.get(index)
    return None if fact is None else _call(code, index, fact, False)


def _call(code: CodeType, index: int, fact: CallFact, after_back_edge: bool) -> Call:
    return Call(
        fact.target,
        site_of(code, index),
        flow_of(code).instructions[index].offset,
        fact.arguments,
        fact.keywords,
        fact.computed,
        after_back_edge,
        fact.kind,
    )


def assignment_sites(code: CodeType, name: str) -> tuple[Site, ...]:
    """Return where the name or path is assigned in this code, in the order of the source."""
    stores = survey_of(code).stores
    sites = (site_of(code, index) for index in sorted(stores) if name in stores[index])
    return tuple(sorted(dict.fromkeys(sites), key=lambda site: (site.line, site.column)))


def site_of(code: CodeType, index: int) -> Site:
    """Return the place of an instruction by its index in the flow."""
    flow = flow_of(code)
    site = flow.sites.get(index)
    if site is None:
        site = flow.sites[index] = places.of_instruction(code, flow.instructions[index].offset)
    return site


def instruction_at(code: CodeType, index: int) -> Instruction:
    """Return an instruction by its index in the flow."""
    return flow_of(code).instructions[index]
