"""Predicts which of the user's tensors the upcoming code runs backward, and where.

It also schedules these detailed inspections: within a small share of the run's time, with more of
them where a condition on a steadily changing number is about to flip.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import InitVar, dataclass, field
from enum import Enum, auto
from math import ceil, inf
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from gradscope.code import source
from gradscope.code.bytecode import MISSING, site_at
from gradscope.model import Site
from gradscope.model.variable_paths import Path
from gradscope.program.ahead.frames import Frame
from gradscope.program.ahead.machine import Machine, Question
from gradscope.program.ahead.questions import FromFrames, explore, in_words
from gradscope.program.ahead.values import (
    NO_TAINTS,
    NULL,
    Compared,
    Conditions,
    Elements,
    FutureTensor,
    Hazard,
    Taint,
    Taints,
    Unknown,
    key_of,
    reading,
)
from gradscope.program.containers import is_a, is_exactly
from gradscope.program.reach import Limits, named_tensors
from gradscope.program.sites import USER, Place, owner_of, place_in

# What one look reads of the variables: objects, levels and elements in which a model, its state
# and its optimizer lie. The seconds end only what goes astray.
BUDGET = Limits(max_objects=1_000, max_seconds=0.2, max_depth=10, max_items=64)
# Nodes that one look touches: each takes stack when it is destroyed, in addition to those that
# the walks of backward calls touched.
MOST_NODES = 2_000
# Lines where a graph was built, and tensors or nodes, that a finding lists: the first few are
# enough to find it.
MOST_MADE, MOST_NAMED = 3, 20
_MOST_TENSORS = 64  # tensors with a graph that are followed ahead, those with short names first
# Conditions that a finding names (`if x and y`); nobody acts on a prediction with more of them.
_MOST_CONDITIONS = 2
_STEPS = ("variable", "attribute", "item")
_UNREAD: Any = object()
"""Stands for what a path leads to where that is not known."""
_NOTHING = (MISSING, NULL, _UNREAD)


@dataclass(slots=True, eq=False)
class Held:
    """A tensor of the user's, its names, and what it leads to; it lives only for one inspection.

    ``own`` is the place in the look of its node, ``freed`` are the places of the nodes that will be
    freed, the nearest first.
    """

    tensor: Tensor
    paths: list[Path] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    own: int | None = None


def tensors_of(frames: Sequence[FrameType]) -> list[Held]:
    """Return the tensors with a graph that variables lead to, those with short names first."""
    found = named_tensors(frames, BUDGET)
    return [Held(tensor, paths) for tensor, paths in found[:_MOST_TENSORS]]


class Effect(Enum):
    """What a read leads to: a backward call that starts from it, a computation, or an in-place
    addition.
    """

    BACKWARD = auto()
    FEEDS = auto()
    AUGMENTED = auto()


class Read(NamedTuple):
    """Where the tensor that ``name`` holds is read, in the user's code; ``backward`` is the call
    that comes of it.

    ``again``: it is read in a later iteration of a loop around the starting point, or by code that
    a library runs again. ``carried``: when the call comes, the program has stored something else
    under the name. ``alone``: the call runs nothing else; ``parted``: before it, an optimizer steps
    or gradients are reset.
    """

    name: str
    site: Site
    effect: Effect
    backward: Site
    again: bool = False
    carried: bool = False
    alone: bool = False
    parted: bool = False


HeldReads: TypeAlias = list[tuple[Held, Read]]


@dataclass(slots=True)
class Prediction:
    """The reads of held tensors that lead to a failing backward call, and what must hold for it to
    come: None where every way that the code can go leads there.

    ``compared`` are conditions on numbers, ``reasons`` says how the ways end that do not lead
    there, ``steps`` how much was read.
    """

    reads: HeldReads = field(default_factory=list)
    conditions: tuple[str, ...] | None = None
    compared: Conditions = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    steps: int = 0


@dataclass(eq=False)
class ReachingTensors(Question):
    """Which tensors lead to what is looked for; it lives no longer than one look.

    ``_traces`` says so of a held tensor, as it is true of those ``found``; ``_meets`` says whether
    the way from it to the given inputs comes there.
    """

    found: InitVar[Sequence[Held]]
    _traces: Callable[[Held], bool]
    _meets: Callable[[Held, Tensor], bool] | None = None

    def __post_init__(self, found: Sequence[Held]) -> None:
        self._known = {id(held.tensor): held for held in found}
        self._leads = {id(held.tensor): True for held in found}

    @property
    def leads(self) -> bool:
        """Whether any of the tensors that are held leads there."""
        return bool(self._leads)

    def rank(self, taint: Taint) -> tuple[int, int]:
        """Order taints by how soon their tensors are read, and by how short their names are."""
        steps = taint.note.steps if taint.note is not None else 0
        return steps, [*self._known].index(id(taint.held.tensor))

    def taints(self, tensor: Tensor) -> Taints:
        """Return what a live tensor leads to."""
        key = id(tensor)
        if key not in self._leads:
            held = self._known[key] = Held(tensor)
            self._leads[key] = self._traces(held)
        return frozenset((Taint(self._known[key]),)) if self._leads[key] else NO_TAINTS

    def meets(self, taints: Taints, inputs: Sequence[Any] | None) -> bool | None:
        """Return whether a backward call from there to these inputs runs it; None if unknown.

        What was there before leads to no input that is computed only then.
        """
        if inputs is None:
            return True
        if self._meets is None:
            return False
        live = [each for each in inputs if is_a(each, Tensor)]
        if any(self._meets(taint.held, each) for taint in taints for each in live):
            return True
        later = [each for each in inputs if is_exactly(each, FutureTensor)]
        return False if len(live) + len(later) == len(inputs) else None

    def is_over(self, machine: Machine) -> bool:
        """Return whether it is known that nothing leads there any more."""
        frames = [*machine.frames, *machine.outer]
        at_hand = [each for frame in frames for each in (*frame.variables, *frame.stack)]
        at_hand += [each for each in reading.alive() if type(each) is Elements]
        if machine.held((*at_hand, *machine.overlay.written())) or not machine.saw_all:
            return False
        known = (self._known[key] for key, leads in self._leads.items() if leads)
        return not any(_is_there(machine, frames, p, held) for held in known for p in held.paths)

    def gone(self, machine: Machine, taints: Taints) -> frozenset[str]:
        """Return the names under which the program has stored something else by then."""
        frames = [*machine.frames, *machine.outer]
        paths = ((path, taint.held.tensor) for taint in taints for path in taint.held.paths)
        return frozenset(
            path.text
            for path, tensor in paths
            if (found := _found(machine, frames, path)) is not _UNREAD and found is not tensor
        )


def _is_there(machine: Machine, frames: Sequence[Frame], path: Path, held: Held) -> bool:
    """Return whether a path may still lead to a tensor as far as the program has been read."""
    found = _found(machine, frames, path)
    if found is held.tensor:
        return bool(machine.taints(held.tensor))
    return found is _UNREAD or (is_exactly(found, Unknown) and bool(machine.held((found,))))


def _found(machine: Machine, frames: Sequence[Frame], path: Path) -> Any:
    """Return what a path leads to as far as the program has been read."""
    origin = path.origin
    if any(step.kind not in _STEPS for step in (*path.steps, *path.beyond)) or origin.prefix:
        return _UNREAD
    found: Any = MISSING
    for frame in frames:
        code = frame.code
        if origin.owner == "global":
            if frame.space.get("__file__") == origin.file or not origin.file:
                found = machine.overlay.view(frame.space).get(path.root, NULL)
                break
        elif (origin.function, origin.line) == (code.co_qualname, code.co_firstlineno):
            slots = frame.flow.slots
            found = frame.variables[slots.index(path.root)] if path.root in slots else MISSING
            found = machine.overlay.value_in(found)
            break
    else:
        return MISSING if origin.owner in ("local", "cell") else _UNREAD
    for step in path.steps:
        if is_exactly(found, Unknown, FutureTensor) or any(found is each for each in _NOTHING):
            break
        part = _part_of(machine, found, *step)
        found = MISSING if part is _UNREAD and not machine.held((found,)) else part
    return found


def _part_of(machine: Machine, owner: Any, kind: str, key: Any) -> Any:
    """Return the attribute or element of an object as far as the program has been read."""
    view = machine.overlay.view(owner)
    if kind == "item" and is_a(view, dict):
        return dict.get(view, key_of(key), MISSING)
    if kind == "item" and is_a(view, list, tuple):
        base: Any = list if is_a(view, list) else tuple
        return base.__getitem__(view, key) if key < base.__len__(view) else MISSING
    parts = map(machine.overlay.view, machine.parts_of(owner))
    spaces = (machine.held_fields(owner), *parts)
    return next((space[str(key)] for space in spaces if str(key) in space), _UNREAD)


def predict(
    wanted: ReachingTensors, start: FromFrames, frames: Sequence[FrameType], rounds: float = inf
) -> Prediction:
    """Return what will be run backward of the tensors that are wanted.

    ``frames`` are the user's, innermost first; the loops around the start are read for so many
    ``rounds`` at the most.
    """
    explored = explore(wanted, start, rounds)
    found = Prediction(compared=explored.compared, reasons=explored.reasons, steps=explored.steps)
    if not explored.is_certain:
        words = filter(None, map(in_words, explored.parting))
        found.conditions = tuple(dict.fromkeys(words))[:_MOST_CONDITIONS]
    is_left = not explored.is_complete and not explored.ends  # ways that could not be followed
    if found.conditions == () and not is_left:
        return found
    sure = [hazard for hazard in explored.hazards if hazard.sure]
    for hazard in sorted(sure, key=lambda each: each.note.steps)[:1]:  # the nearest
        for taint in sorted(hazard.taints, key=wanted.rank):
            if all(taint.held is not known for known, _ in found.reads):
                found.reads.append((taint.held, _read(hazard, taint, frames)))
    return found


def _read(hazard: Hazard, taint: Taint, frames: Sequence[FrameType]) -> Read:
    """Return the read by which a backward call comes to a held tensor."""
    note, call = taint.note or hazard.note, hazard.note
    frame, calling = (frames[min(each.depth, len(frames) - 1)] for each in (note, call))
    site = site_at(note.code, note.at)
    driven = owner_of(call.code) != USER
    backward = place_in(calling).site if driven else site_at(call.code, call.at)
    via = _text(site)
    adds = via and _adds_to(source.statement_at(site), via)
    effect = Effect.AUGMENTED if adds else Effect.FEEDS
    effect = Effect.BACKWARD if _is_root_at(backward, site) else effect
    name = via if driven and via else name_of(taint.held, frame, via)
    names = {path.text for path in taint.held.paths}
    in_loop = driven or source.loop_around(place_in(frame).site) is not None
    carried = in_loop and bool(names) and hazard.gone >= ({name} if name in names else names)
    again = driven or note.again
    return Read(name, site, effect, backward, again, carried, hazard.alone, hazard.parted)


def _is_root_at(backward: Site, site: Site) -> bool:
    """Return whether what is read at a site is what a backward call starts from."""
    if (backward.file, backward.line) != (site.file, site.line):
        return False
    call = source.call_at(backward)
    if call is None:
        return False
    roots = [call.func.value] if isinstance(call.func, ast.Attribute) else call.args[:1]
    roots += call.args[:1] if source.called_name(call) == "grad" else []
    paths = (each for each in roots if isinstance(each, ast.Name | ast.Attribute | ast.Subscript))
    return (site.line, site.column) in ((each.lineno, each.col_offset + 1) for each in paths)


def _adds_to(statement: ast.stmt | None, name: str) -> bool:
    """Return whether a statement adds something to a name: ``total = total + loss``."""
    match statement:
        case ast.AugAssign(target=target, op=ast.Add()):
            return ast.unparse(target) == name
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add(), left=left, right=right)):
            return ast.unparse(target) == name in (ast.unparse(left), ast.unparse(right))
    return False


def _text(site: Site) -> str:
    """Return what is written at a site, if that is a name or a path."""
    node = source.node_at(site, ast.expr)
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else ""


def name_of(held: Held, frame: FrameType, written: str) -> str:
    """Return the name by which the user knows a tensor in a frame."""
    names = [path.text for path in held.paths if _is_of(path, frame)]
    if written in names:
        return written
    if names or written:
        return names[0] if names else written
    return held.paths[0].text if held.paths else "the result"


def _is_of(path: Path, frame: FrameType) -> bool:
    """Return whether a path starts from a variable of a frame, or of its module."""
    origin, code = path.origin, frame.f_code
    if origin.owner in ("local", "cell"):
        own = (code.co_qualname, code.co_firstlineno, code.co_filename)
        return (origin.function, origin.line, origin.file) == own
    return origin.owner in ("global", "unnamed") and not origin.prefix


# Looks at the first calls of each kind. What is carried over shows in the second or third:
#
#     state = None
#     for x in data:
#         out, state = rnn(x, state)  # no graph before it in the first iteration
#         out.sum().backward()  # GS102 is foretold in the first, and raised in the second
_FIRST = 3
# Looks that are made however long they take, so that no clock changes what is found. A look takes
# about 0.02 s, so they end within half a second.
_FREE_LOOKS = 24
# Steps of reading in all these looks together, three times the most that one may read: some read
# as much as many others.
_FREE_STEPS = 120_000
# The same for the first call of each kind: that look is worth more, and a run has few of them.
_FREE_LOOKS_FOR_NEW = 80
# Once a look of this kind has read this many steps without a result, loops are read for so few
# rounds: further rounds are the same but for the last one, and a condition that is about to turn
# raises an alarm.
_LONG, _ROUNDS_AGAIN = 2_000, 4
_SHARE = 0.01  # of the run's time that looks may take beyond those
# Kinds of calls, and conditions, that are remembered; further ones are not looked at. Code made
# by exec() in a loop has new ones without end.
_MOST_KINDS = 10_000


class Schedule:
    """Counts calls by kind (the place and the shape of what is there), and close looks and the time
    that they take: the thread's own. A look turns Python's collector off, or the program's garbage
    would take that time.
    """

    def __init__(self) -> None:
        self._met: dict[Hashable, int] = {}
        self._kind: Hashable = None
        self._in_vain = set[Hashable]()
        self._started = time.perf_counter()
        self._entered = 0.0
        self._spent = 0.0
        self._looks = self._read = 0

    def is_due(self, kind: Hashable) -> bool:
        """Count this call; True for the first few of a kind and then for every 2^k-th."""
        met = self._met.get(kind, 0) + 1
        if met == 1 and len(self._met) >= _MOST_KINDS:
            return False
        self._met[kind], self._kind = met, kind
        comes = met <= _FIRST or not met & (met - 1)
        return comes and self.has_time(_FREE_LOOKS_FOR_NEW if met == 1 else _FREE_LOOKS)

    def has_time(self, free: int = _FREE_LOOKS) -> bool:
        """Return whether a look is free, as not many have read not much yet, or looks have taken
        less than their share.
        """
        share = _SHARE * (time.perf_counter() - self._started)
        is_free = self._looks < free and self._read < _FREE_STEPS
        return is_free or self._spent < share

    @property
    def rounds(self) -> float:
        """How many rounds of a loop a look of the last kind is to read at the most."""
        return _ROUNDS_AGAIN if self._kind in self._in_vain else inf

    def read(self, foretold: Prediction) -> None:
        """Note what a look of the last kind has read ahead."""
        self._read += foretold.steps
        if foretold.steps >= _LONG and not foretold.reads:
            self._in_vain.add(self._kind)

    def __enter__(self) -> None:
        self._entered = time.thread_time()

    def __exit__(self, *exception: object) -> None:
        self._spent += time.thread_time() - self._entered
        self._looks += 1


# A condition on a number, as the first one here, turns long after the loop has become the same:
#
#     for step in range(400):
#         loss = net(x).square().mean()
#         if step >= 50:  # read at calls 1, 2 and 3, `step` moves by one a call: it turns at 51
#             level = loss if level is None else 0.9 * level + 0.1 * loss
_AHEAD = 3  # moves of the number: the graphs of the one before are then built under hooks
_FARTHEST = 10_000_000  # calls: a turn that far off comes in no run
# Turns of a condition, there and back, as of `if step % 5 == 0`: the next ones lead to nothing
# else.
_ENOUGH = 6
# Calls after which a number that has not moved is taken to stay (`epoch`, if an epoch has more
# batches): what it turns is then reported when it comes.
_SETTLED = 64


@dataclass(slots=True)
class _Moving:
    """A number that is compared: the call and what it was at first, at last, and its least move."""

    since: int
    first: float
    last: float
    held: bool
    least: float = inf
    turned: int = 0

    def turns_at(self, call: int, now: Compared) -> range | None:
        """Return the numbers of the calls about which the condition will turn, if the number moves
        on at this pace.
        """
        step, has_turned = now.number - self.last, now.holds != self.held
        if step * (self.last - self.first) < 0:  # it begins anew
            self.since, self.first = call, now.number
        self.least = min(self.least, abs(step) or inf)
        self.last, self.held = now.number, now.holds
        self.turned += has_turned
        moved = abs(now.number - self.first)
        if self.turned >= _ENOUGH or moved == inf:
            return None
        if not moved:
            return range(2 * call, 3 * call) if call < _SETTLED else None
        pace = (call - self.since) / moved
        away = (now.rise if now.number > self.first else now.fall) * pace
        between = pace * self.least  # two moves
        if not between < _FARTHEST:  # the program may compare any numbers
            return None
        around = ceil(_AHEAD * max(between, 1))
        if has_turned:  # what it leads to may come a little later
            return range(call + 1, call + 1 + around)
        if not away < _FARTHEST:
            return None
        # The calls between two moves are told apart only by how many moves were seen.
        soonest = call + int(away * (moved / (moved + self.least))) - around
        return range(max(soonest, call + 1), call + ceil(away) + around + 1)


class ConditionTracker:
    """Follows the numbers that were compared ahead, from one reading of a call to the next."""

    def __init__(self) -> None:
        self._moving: dict[tuple[Place | None, tuple[int, int]], _Moving] = {}

    def next_turn(self, place: Place | None, call: int, conditions: Conditions) -> range:
        """Return the numbers of the calls about which the first of these conditions will turn."""
        turns = []
        for key, now in conditions.items():
            if (place, key) in self._moving or len(self._moving) < _MOST_KINDS:
                new = _Moving(call, now.number, now.number, now.holds)
                turns.append(self._moving.setdefault((place, key), new).turns_at(call, now))
        return min(filter(None, turns), key=lambda turn: turn.start, default=range(0))
