"""Decides whether a backward call that may come must come, judged by the values at hand."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType, GeneratorType
from typing import Any, NamedTuple

from gradscope.code import source
from gradscope.code.liveness import (
    MISSING,
    RESULT,
    Coming,
    Condition,
    Exploration,
    Forecaster,
    Notes,
    Returned,
    instruction_at,
    is_plain,
    let_go,
    read_of,
    site_of,
    ways_after,
)
from gradscope.code.names import root_of
from gradscope.collect.alarms import Alarm
from gradscope.detect.foresight.facts import FrameFacts
from gradscope.detect.foresight.loops import Loops
from gradscope.detect.foresight.objects import Objects, Resolver
from gradscope.detect.foresight.reading import (
    MOST_FRAMES,
    MOST_NAMES,
    Reading,
    Tracked,
    doubted,
    in_caller,
    last_step,
    names_in,
    possible_read,
    shown_name,
)
from gradscope.detect.foresight.shared_graphs import Held
from gradscope.program.sites import place_in
from gradscope.program.standing import standing

_MOST_STARTS = 6  # ways to return from inner functions that are followed in outer ones
_MOST_CONDITIONS = 2
_FARTHEST = 4_096
_KNOWN = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Constant, ast.Name, ast.Attribute)
_PARTS = (*_KNOWN, ast.cmpop, ast.boolop, ast.unaryop, ast.operator, ast.expr_context)
_COSTLY = (ast.Pow, ast.LShift, ast.MatMult, ast.In, ast.NotIn)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A read that leads to a failing backward call, and what must hold for it to come.

    ``comes``: every way that the code can go leads there. ``when`` orders outlooks by how soon.
    """

    reading: Reading
    comes: bool = True
    conditions: tuple[str, ...] = ()
    when: tuple[int, int, int] = (MOST_FRAMES, 0, 0)


def foretell(
    held: Held,
    frames: Sequence[FrameType],
    loops: Loops,
    *,
    at_line: bool = False,
    decided: list[tuple[FrameType, int]] | None = None,
) -> Outlook | None:
    """Return what will be done with a tensor, if that runs it backward.

    ``frames`` are the user's, innermost first. ``at_line``: the innermost is about to run the line
    it stands at. ``decided`` gets the branches that keep it from coming, by instruction.
    """
    possible = possible_read(held, frames, loops)
    if possible is None:
        return None
    in_doubt = doubted(possible, at_line=at_line)
    if possible.again or possible.tracked is None or possible.tracked.cached:
        return None if in_doubt else Outlook(possible)
    ahead = _Ahead(held, frames, loops)
    if decided is not None and not ahead.certain:
        decided += ahead.decided
    if ahead.never:
        return None
    reading = ahead.reading or possible
    comes = ahead.certain and (not in_doubt or not doubted(reading, at_line=at_line, known=True))
    if not comes and in_doubt:
        return None
    return Outlook(reading, comes, () if comes else ahead.conditions, ahead.when)


@dataclass(frozen=True, slots=True)
class _Start:
    """What holds when an inner function has returned in one of its ways."""

    alive: Mapping[str, bool]
    carried: frozenset[str]
    written: Mapping[str, Any]
    result: Any
    conditions: tuple[Condition, ...]


class _Found(NamedTuple):
    """A backward call that may come, with what tells by which read, and from which frame."""

    coming: Coming
    notes: Notes
    names: Mapping[str, Tracked]
    depth: int


class _Ahead:
    """All ways that lead on from the frames, followed until they end or run the tensor backward."""

    def __init__(self, held: Held, frames: Sequence[FrameType], loops: Loops) -> None:
        self._held = held
        self._loops = loops
        self._frames = frames[:MOST_FRAMES]
        self._coming: list[_Found] = []
        self._lost = False
        self.decided: list[tuple[FrameType, int]] = []
        self._complete = True
        self._unread = False
        catches = any(map(_catches, self._frames))
        starts = [_Start({}, frozenset(), {}, MISSING, ())]
        for depth in range(len(self._frames)):
            found: list[_Start] = []
            for start in starts:
                found += self._follow(depth, start, catches)
            apart = _apart(found)
            starts = apart[:_MOST_STARTS]
            self._complete = self._complete and len(apart) <= _MOST_STARTS
            if not starts:
                return
        self._lost = True  # the program continues where it cannot be seen, or ends

    @property
    def never(self) -> bool:
        """Whether no way leads to a backward call through the tensor."""
        return self._complete and not self._coming

    @property
    def certain(self) -> bool:
        """Whether all ways lead to one and the same backward call through it."""
        places = {coming.at for coming, *_ in self._coming}
        return self._complete and not (self._lost or self._unread) and len(places) == 1

    @property
    def reading(self) -> Reading | None:
        """The read that the nearest of these calls comes of."""
        if not self._coming:
            return None
        coming, notes, names, depth = min(self._coming, key=self._nearest)
        frame = self._frames[depth]
        read = read_of(notes.all[coming.read])
        read = replace(read, backward=site_of(*coming.at))
        tracked = next(t for t in names.values() if t.read == read.name)
        return Reading(shown_name(tracked.name, frame), read, frame, tracked=tracked)

    @property
    def when(self) -> tuple[int, int, int]:
        """How soon the nearest of these calls comes: frames, loops, and instructions from here."""
        return min(map(self._soon, self._coming), default=(MOST_FRAMES, 0, 0))

    def _soon(self, found: _Found) -> tuple[int, int, int]:
        return found.depth, found.coming.phase.level, found.coming.distance

    def _nearest(self, found: _Found) -> tuple[tuple[int, int, int], int, int, str]:
        """Return how soon a call comes; of several reads that come to it, the nearest is first."""
        note = found.notes.all[found.coming.read]
        return self._soon(found), note.distance, note.index, note.name

    @property
    def conditions(self) -> tuple[str, ...]:
        """What must hold for the nearest of these calls, as text."""
        if not self._coming:
            return ()
        fewest = min((coming.conditions for coming, *_ in self._coming), key=len)
        return tuple(dict.fromkeys(map(in_words, fewest)))[:_MOST_CONDITIONS]

    def _follow(self, depth: int, start: _Start, catches: bool) -> list[_Start]:
        """Follow the ways of one frame; return how it continues in the caller's."""
        frame = self._frames[depth]
        objects = Objects(frame)
        found = names_in(self._held.paths, frame, objects)
        names = {n: t for n, t in found.items() if start.alive.get(last_step(n), True)}
        for name in start.carried:
            names.setdefault(name, Tracked(name))
        names = dict([*names.items()][:MOST_NAMES])
        reads = [tracked.read for tracked in names.values()]
        notes, explored = Notes(), Exploration()
        resolve = Resolver(objects, *(tracked.target for tracked in names.values()))
        code, lasti = standing(frame)
        forecaster = Forecaster(
            code, notes, resolve, FrameFacts(objects, comes_again, frame), explored
        )
        ahead = self._loops.of(frame, objects, self._held.tensor, {t.read for t in found.values()})
        ways = ways_after(forecaster, lasti, reads, start.written, start.result, ahead)
        forecaster.explore(way._replace(conditions=start.conditions) for way in ways)
        self._complete = self._complete and explored.is_complete
        self._unread = self._unread or explored.unread
        self.decided += [(frame, index) for index in explored.decided]
        self._coming += [_Found(coming, notes, names, depth) for coming in explored.coming]
        self._lost = self._lost or (catches and bool(explored.raised))
        if depth + 1 == len(self._frames):
            self._lost = self._lost or bool(explored.lost) or bool(forecaster.returns)
            return []
        outer = self._frames[depth + 1]
        # What this function has let go of, its callers may still hold.
        ended = (*forecaster.returns, *(let_go(conditions) for conditions in explored.lost[:1]))
        return [self._left(way, names, frame, outer) for way in ended]

    def _left(
        self, way: Returned, names: Mapping[str, Tracked], frame: FrameType, outer: FrameType
    ) -> _Start:
        left = frozenset(way.env) | (frozenset((RESULT,)) if way.value.marks else frozenset())
        alive: dict[str, bool] = {}
        carried: set[str] = set()
        for tracked in names.values():
            last = last_step(tracked.name)
            alive[last] = alive.get(last, False) or tracked.name in left or tracked.read in left
            carried |= set(in_caller(left - {tracked.name}, frame.f_code, outer))
        variables = (*frame.f_code.co_varnames, *frame.f_code.co_cellvars)
        shared = outer.f_globals is frame.f_globals
        written = {
            path: value
            for path, value in way.written.items()
            if path[0] in "*([" or (shared and root_of(path) not in variables)
        }
        result = MISSING if way.value.marks else way.value.constant
        return _Start(alive, frozenset(carried), written, result, way.conditions)


def _apart(starts: Sequence[_Start]) -> list[_Start]:
    """Return one of the starts that differ only in how they are come to, by the fewest conditions.

    `if noisy: print(loss)` before a `return` makes two ways, which leave the same.
    """
    found: dict[Any, _Start] = {}
    for start in sorted(starts, key=lambda start: len(start.conditions)):
        what = (start.alive.items(), start.written.items(), start.carried)
        found.setdefault((*map(frozenset, what), type(start.result), start.result), start)
    return [*found.values()]


def _catches(frame: FrameType) -> bool:
    """Return whether an exception that is raised in the frame may be caught there."""
    site = place_in(frame).site
    return any(
        isinstance(node, ast.Try) and node.handlers
        for node in source.enclosing(site.file, site.line)
    )


def comes_again(generator: GeneratorType[Any, Any, Any]) -> bool | None:
    """Return whether a generator will yield once more, judged by its own values."""
    frame = generator.gi_frame
    if frame is None:
        return False
    if generator.gi_running or generator.gi_yieldfrom is not None:
        return None
    explored = Exploration(to_yield=True)
    facts = FrameFacts(Objects(frame), comes_again, frame)
    forecaster = Forecaster(frame.f_code, Notes(), None, facts, explored)
    forecaster.explore(ways_after(forecaster, frame.f_lasti, (), {}, MISSING))
    if not explored.is_complete or explored.raised:
        return None
    if forecaster.returns:
        return None if explored.coming else False
    return True if explored.coming else None


def in_words(condition: Condition) -> str:
    """Return what must hold at a branch: "`args.aux` is true"."""
    code, at, taken = condition
    name = instruction_at(code, at).opname
    if name == "FOR_ITER":
        ends = "ends" if taken else "runs again"
        return f"the loop of line {site_of(code, at).line} {ends}"
    site = site_of(code, at - 1)  # the test; the jump itself may be placed at the whole statement
    text = source.line_of(site.file, site.line)[site.column - 1 : (site.end_column or 0) - 1]
    if not text or site.end_line not in (0, None, site.line):
        return f"the condition of line {site.line} is met"
    if "NONE" in name:
        return f"`{text}` is {'None' if taken != ('NOT_NONE' in name) else 'not None'}"
    return f"`{text}` is {'true' if taken == ('IF_TRUE' in name) else 'false'}"


def next_turn(decided: Iterable[tuple[FrameType, int]]) -> Alarm | None:
    """Return when the first of these branches, by frame and instruction, will turn."""
    alarms = [alarm for frame, at in dict.fromkeys(decided) if (alarm := _turn(frame, at))]
    return min(alarms, key=lambda alarm: alarm.at, default=None)


def _turn(frame: FrameType, at: int) -> Alarm | None:
    site = site_of(standing(frame).code, at)
    statement, loop = source.statement_at(site), source.loop_around(site)
    if not isinstance(statement, ast.If) or not isinstance(loop, ast.For):
        return None
    counters = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    names = {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}
    nodes = [*ast.walk(statement.test)]
    if len(names & counters) != 1 or not all(isinstance(node, _PARTS) for node in nodes):
        return None
    if any(isinstance(node, _COSTLY) for node in nodes):
        return None
    name = (names & counters).pop()
    objects = Objects(frame)
    value = objects.find(name)
    test = _compiled(ast.unparse(statement.test))
    read = {text: objects.find(text) for text in test.co_names if text != name}
    if type(value) is not int or not all(map(is_plain, read.values())):
        return None
    try:
        holds = bool(eval(test, {"__builtins__": {}, **read, name: value}))
        for later in range(value + 1, value + _FARTHEST):
            if bool(eval(test, {"__builtins__": {}, **read, name: later})) != holds:
                return Alarm(frame.f_code, name, later)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None


def _compiled(test: str) -> CodeType:
    """Return a test, compiled, that reads ``self.every`` as a variable of that name."""

    class Reads(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
            return ast.copy_location(ast.Name(ast.unparse(node), ast.Load()), node)

    return compile(Reads().visit(ast.parse(test, mode="eval")), "<test>", "eval")
