"""Finds what is read next, from a code object and the instruction that it stands at."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

from gradscope.code import places, source
from gradscope.code.liveness.callees import Resolve
from gradscope.code.liveness.flow import Instruction, flow_of, level_after
from gradscope.code.liveness.notes import Effect, Note, Notes, Phase
from gradscope.code.liveness.opcodes import Action
from gradscope.code.liveness.parts import ANYWHERE
from gradscope.code.liveness.survey import CallFact, Loops, survey_of
from gradscope.code.liveness.tracking import Tracker
from gradscope.code.liveness.values import (
    NO_MARKS,
    Env,
    Kind,
    Mark,
    Role,
    State,
    Value,
    caught,
    take,
)
from gradscope.code.liveness.words import CallKind
from gradscope.code.names import is_element
from gradscope.model import Site


class Call(NamedTuple):
    """A call: the dotted name as written, and what it does with graphs, as its last name tells.

    ``computed`` are the keywords whose values are no constants. ``offset`` is that of the
    instruction; ``after_back_edge``: only in a later iteration of a loop around the start.
    """

    target: str
    computed: frozenset[str]
    kind: CallKind
    site: Site
    offset: int
    after_back_edge: bool = False


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
    offset = flow_of(code).instructions[index].offset
    return Call(*fact, site_of(code, index), offset, after_back_edge)


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


RESULT = "<result>"
"""As a name: what the call that the frame stands at will return."""


@dataclass(frozen=True, slots=True)
class Read:
    """One place where the object that ``name`` holds is read before the name is rebound.

    ``via`` is the path by which it is read there (an alias, a container, a parameter); ``backward``
    the backward call that it, or what is built on it, can come to: None is "none seen", not "none".
    ``after_back_edge``: only in a later iteration of a loop around the starting point;
    ``only_on_exception``: only by way of an exception handler. ``at_hand``: it was read before the
    starting point, as what a loop runs over. ``maybe``: another element of ``via`` may be taken.
    """

    name: str
    site: Site
    effect: Effect
    via: str = ""
    backward: Site | None = None
    after_back_edge: bool = False
    only_on_exception: bool = False
    at_hand: bool = False
    maybe: bool = False

    @property
    def is_dangerous(self) -> bool:
        """Whether a backward call is seen to run through what was read."""
        return self.backward is not None and not self.only_on_exception


def all_reads(
    code: CodeType,
    lasti: int,
    names: Collection[str],
    resolve: Resolve | None = None,
    loops: Loops | None = None,
) -> dict[str, tuple[Read, ...]]:
    """Return for each name all reads that control can reach from just after ``lasti`` before it is
    rebound, nearest first.

    A name is a local, global or closure variable, or a path on one: ``self.h``, ``losses[3]``,
    ``cache['k'].state``; or RESULT. ``lasti`` is ``frame.f_lasti``, or -1 for the function's start.
    ``resolve`` finds the code of functions that are called, so that what they do with their
    arguments counts; without it, they are taken to build on them. ``loops`` tells what the loops
    around ``lasti`` will still give; without it, they may give any element again.
    """
    notes = Notes()
    flow = flow_of(code)
    index = flow.index(lasti)
    env = {name: frozenset((Mark(name, Kind.SAME, -1),)) for name in names if name != RESULT}
    tracker = Tracker(code, notes, resolve)
    tracker.loops_at_hand = loops
    starts = starts_after(tracker, index, env, names, loops)
    tracker.follow(starts, flow.loops_around(index))
    found: dict[str, tuple[Read, ...]] = {}
    for note in sorted(notes.all, key=_nearness):
        if not note.before or note.effect is not Effect.HARMLESS:
            found[note.name] = (*found.get(note.name, ()), read_of(note))
    return found


def _nearness(note: Note) -> tuple[bool, int, int, str]:
    return note.phase.on_exception, note.distance, note.index, note.name


def read_of(note: Note) -> Read:
    """Return a read as it was noted."""
    return Read(
        note.name,
        _site(note),
        note.effect,
        note.via,
        site_of(*note.backward) if note.backward is not None else None,
        note.phase.level > 0,
        note.phase.on_exception,
        note.before and note.name != RESULT,
        note.maybe,
    )


def _site(note: Note) -> Site:
    """Return the place of a read: an instruction that does two things has that of the first."""
    site, instruction = site_of(note.code, note.index), instruction_at(note.code, note.index)
    variable = re.split(r"[.\[]", note.name)[0]
    if variable != instruction.second or variable == instruction.name:
        return site
    return source.name_after(site, variable) or site


def starts_after(
    tracker: Tracker,
    index: int,
    env: Env,
    names: Collection[str],
    loops: Loops | None = None,
) -> list[tuple[Phase, int, State]]:
    """Return where to start: after the instruction, and at its exception handler."""
    if index < 0:
        return [(Phase(), 0, State(env, ()))]
    flow = tracker.flow
    surveyed = survey_of(tracker.code).stacks.get(index)
    if surveyed is None:
        return []
    instruction = flow.instructions[index]
    calls = instruction.action in (Action.CALL, Action.CALL_KW, Action.CALL_EX)
    if calls:  # what the call was given is its own
        surveyed = take(surveyed, 1 - instruction.effect)[0]
    stack = tuple(
        _at_hand(tracker, value, names, loops, depth) for depth, value in enumerate(surveyed)
    )
    starts = []
    if calls:
        result = NO_MARKS
        if RESULT in names:
            read = tracker.notes.add(Note(RESULT, RESULT, tracker.code, index, before=True))
            result = frozenset((Mark(RESULT, Kind.SAME, read),))
        starts.append((Phase(), index + 1, State(env, (*stack, Value(marks=result)))))
    else:
        state = State(env, stack)
        if instruction.falls and index + 1 < len(flow.instructions):
            starts.append((Phase(), index + 1, tracker.execute(index, state)))
        if instruction.jump >= 0:
            starts.append((Phase(), instruction.jump, tracker.execute(index, state, taken=True)))
    if instruction.handler >= 0:
        kept = State(env, caught(stack, instruction))
        starts.append((Phase(on_exception=True), instruction.handler, kept))
    return starts


def _at_hand(
    tracker: Tracker, value: Value, names: Iterable[str], loops: Loops | None, depth: int
) -> Value:
    """Return a stacked value of the survey with marks of the names asked about.

    Of an iterator, the objects that it will still give get the marks.
    """
    found = set()
    for name in names:
        rests = loops.coming(depth, name) if loops is not None else None
        for mark in value.marks:
            if rests is None and (name == mark.name or is_element(name, mark.name)):
                note = Note(name, mark.name, tracker.code, mark.read, before=True)
                found.add(Mark(name, mark.kind, tracker.notes.add(note)))
        if rests:
            assert loops is not None
            via, read = next(((m.name, m.read) for m in value.marks), ("", loops.header(depth)))
            number = tracker.notes.add(Note(name, via, tracker.code, read, before=True))
            found |= {Mark(name, Kind.SAME, number, ANYWHERE + rest) for rest in rests}
    spent = loops is not None and loops.is_spent(depth)
    role = Role.SPENT if spent else value.role
    return value._replace(marks=frozenset(found), items=(), role=role)


class _Leaver(Tracker):
    """A tracker that notes only returns that no exception led to."""

    def _leave(self, state: State) -> None:
        if not self.phase.on_exception:
            super()._leave(state)

    def gave(self, value: Value, *, awaiting: bool = False) -> None:
        """Hand the marks to the caller."""
        if not self.phase.on_exception:
            super().gave(value, awaiting=awaiting)


def left_after(
    code: CodeType,
    lasti: int,
    names: Collection[str],
    resolve: Resolve | None = None,
    loops: Loops | None = None,
) -> dict[str, frozenset[str]]:
    """Return for each name the paths under which the object, or something built on it, is held when
    the function returns.

    RESULT is among them if the function returns it. The arguments are those of ``all_reads``.
    """
    flow = flow_of(code)
    index = flow.index(lasti)
    env = {name: frozenset((Mark(name, Kind.SAME, -1),)) for name in names if name != RESULT}
    tracker = _Leaver(code, Notes(), resolve)
    tracker.loops_at_hand = loops
    starts = [
        start
        for start in starts_after(tracker, index, env, names, loops)
        if not start[0].on_exception
    ]
    tracker.follow(starts, flow.loops_around(index))
    held = tracker.left.env if tracker.left is not None else {}
    found: dict[str, set[str]] = {}
    for path, marks in held.items():
        for mark in marks:
            found.setdefault(mark.name, set()).add(path)
    for mark in tracker.returned:
        found.setdefault(mark.name, set()).add(RESULT)
    return {name: frozenset(paths) for name, paths in found.items()}
