"""Simulates every path from the program's current frames, and reports which backward calls each one
reaches.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from itertools import islice
from math import inf
from types import FrameType, FunctionType
from typing import Any, Final, TypeAlias

import torch
from torch.nn import Module

from gradscope.code import source
from gradscope.code.bytecode import MISSING, NULL_FIRST, flow_of, site_at
from gradscope.program.ahead import builtin_types, iteration, models, opcodes, tensors, torch_models
from gradscope.program.ahead import values as v
from gradscope.program.ahead.frames import NO_RESULT, SUSPENDED, Frame, frame_of
from gradscope.program.ahead.machine import Kinds, Machine, Question
from gradscope.program.ahead.values import Conditions, Fork, Hazard
from gradscope.program.containers import class_name, is_a, is_exactly
from gradscope.program.sites import USER, frames_from, owner_of
from gradscope.program.tensors import PLAIN as PLAIN_TENSORS
from gradscope.program.tensors import node_of
from gradscope.program.variables import local_variables, on_stack
from gradscope.torch_private import current_node, is_reentrant

# Steps of all paths together, an instruction each. Steps end a reading, and not a clock, so that
# what is predicted does not depend on how busy the machine is.
MOST_STEPS = 40_000
# Steps of one path: half of all, so that a path that does not come to an end leaves some for the
# others.
_MOST_OF_ONE = 20_000
# Paths that are followed, each from the beginning: every unknown condition doubles them, and four
# conditions make 16.
_MOST_WAYS = 24
# Frames that are read on, from the innermost outwards: as many as a machine nests.
_MOST_FRAMES = 60
# Steps of an expression whose value at the next line is asked for (``values_of``). Without a loop
# it takes some tens; one with a loop is not worth the time, because this is asked at each line.
_MOST_OF_EXPRESSION = 500
# Nodes of an outer call that are checked for reentrant checkpoints; each takes stack when it is
# destroyed.
_MOST_NODES = 2_000
KINDS = Kinds(builtin_types, iteration, tensors, torch_models)
"""The models that a machine uses."""
_STEP = asyncio.Handle._run.__code__
_ENTRIES = {
    id(torch.Tensor.backward.__code__): False,
    id(torch.autograd.backward.__code__): False,
    id(torch.autograd.grad.__code__): True,
}
"""The functions by which a program calls the engine, by the id of their code, and whether they
return gradients.
"""


Hooks: TypeAlias = Sequence[tuple[Any, v.Given]]
_GRADIENT: Final = object()
"""Stands for a gradient that a hook is given."""
# Hooks of one call that are read. A program that registers one for each parameter mostly registers
# the same function.
_MOST_HOOKS = 64
_LEAF, _OF_MODULES = "AccumulateGrad", "BackwardHookFunctionBackward"


@dataclass(slots=True)
class Explored:
    """Where the paths lead.

    ``hazards`` are backward calls that run a target, ``ends`` how the other paths end, and
    ``reasons`` why something is not known. ``parting`` are the forks that separate the paths to the
    first hazard from other paths, as the former take them. ``compared`` are conditions on numbers.
    """

    hazards: list[Hazard] = field(default_factory=list)
    parting: list[Fork] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    compared: Conditions = field(default_factory=dict)
    is_complete: bool = True
    steps: int = 0

    @property
    def is_certain(self) -> bool:
        """Whether all paths lead to one and the same backward call."""
        places = {(id(hazard.note.code), hazard.note.at) for hazard in self.hazards}
        is_sure = all(hazard.sure for hazard in self.hazards)
        return self.is_complete and len(places) == 1 and is_sure and not self.ends


def explore(question: Question, start: FromFrames, rounds: float = inf) -> Explored:
    """Follow the paths from a starting point, for at most ``rounds`` iterations of the loops around
    it.

    Each path is simulated from the beginning: at a branch on an unknown value it takes one side,
    and a later path takes the other. Each branch is turned only once, on the assumption that it
    leads to the same wherever it is met again:

        for x in data:
            if unknown(x):  # two paths, and not two to the power of the number of iterations
                h = h.detach()
    """
    found = Explored()
    waiting: list[tuple[list[bool], Fork | None]] = [([], None)]
    turned: set[tuple[int, int, int]] = set()
    ways = 0
    try:
        while waiting:
            if ways >= _MOST_WAYS or found.steps >= MOST_STEPS:
                found.is_complete = False
                break
            choices, fork = waiting.pop(0)
            ways += 1
            most = min(_MOST_OF_ONE, MOST_STEPS - found.steps)
            machine = Machine(KINDS, question, choices, most, rounds)
            kind, why = _way(machine, start)
            found.steps += machine.steps
            found.compared = machine.compared | found.compared
            if kind == "lost" and found.steps >= MOST_STEPS:
                found.is_complete = False
                break
            _conclude(found, machine, kind, why, fork)
            before = list(choices)
            for each in machine.forks[len(choices) :]:
                key = id(each.code), each.at, each.turn
                if key not in turned:
                    turned.add(key)
                    waiting.append(([*before, not each.taken], each))
                before.append(each.taken)
            machine.let_go()
    finally:
        v.reading.let_go()
    return found


def _conclude(found: Explored, machine: Machine, kind: str, why: str, fork: Fork | None) -> None:
    if kind == "hazard":
        assert machine.hazard is not None
        if fork is not None and found.ends and not found.hazards:
            found.parting.append(fork._replace(taken=not fork.taken))
        found.hazards.append(machine.hazard)
        if not machine.hazard.sure:
            found.reasons.append(machine.doubt or "what a call starts from is not known")
        return
    if kind in ("lost", "raised"):
        found.reasons.append(why)
    if kind == "raised" and machine.forks:
        return  # either a gap in one of our models, or an error of the program: that is not known
    found.ends.append(kind)
    if fork is not None and found.hazards:
        found.parting.append(fork)


def _way(machine: Machine, start: FromFrames) -> tuple[str, str]:
    """Follow one path; return how it ends, and why."""
    try:
        start.run(machine)
    except v.Stop as stop:
        return stop.kind, stop.why
    except v.Raised as raised:
        return "raised", class_name(v.kind_of(raised.value))
    except v.Exhausted:
        return "lost", "an iterator ended outside of a loop"
    except RecursionError:
        return "lost", "deep recursion"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return "lost", f"a defect: {error!r}"  # of one of our models
    return "end", "the program ends"


class FromFrames:
    """A starting point for a simulation: the program's frames as they are now.

    ``result`` makes the return value of the call that the innermost frame waits for. Without it,
    that frame is about to run its current instruction. ``hooks`` run within the call.
    """

    def __init__(
        self, innermost: FrameType, result: Callable[[], Any] | None, hooks: Hooks = ()
    ) -> None:
        self._frames = _of_program(innermost)
        self._result = result
        self._hooks = hooks

    def run(self, machine: Machine) -> None:
        """Simulate the program from there until it ends, frame by frame from the innermost
        outwards.
        """
        machine.live = self._frames
        waits = self._result is not None
        frames = [frame_of(each, waits=waits or at > 0) for at, each in enumerate(self._frames)]
        users = 0
        for frame in frames:
            frame.depth = users
            users += frame.of_user
            if frame.code.co_flags & SUSPENDED and frame.live is not None:
                frame.suspended = v.Suspended(frame, "running")
                machine.suspended[id(frame.live)] = frame
        how, value = "return", None if self._result is None else self._result()
        inner: Frame | None = None
        machine.frames, machine.outer = [frames[0]], frames[1:]
        if outer := [each.live for each in frames[1:] if id(each.code) in _ENTRIES]:
            _run_checkpoints(machine, outer[0])
        machine.within = True
        for hook, given in self._hooks:
            models.in_thread(machine, hook, _filled_in(given), {})
        machine.frames, machine.within = [], False
        for depth, frame in enumerate(frames):
            machine.outer = frames[depth + 1 :]
            if inner is not None and id(frame.code) in _ENTRIES:
                machine.doubt = machine.doubt or "the engine goes on from an inner call"
            if inner is not None and _is_skipped(machine, frame, inner):
                inner = frame if frame.of_user else inner
                continue
            if inner is None and self._result is None:
                how, value = _guarded(machine, frame)
            else:
                how, value = _resume(machine, frame, inner, how, value)
            code = frame.code
            is_task = depth + 1 == len(frames) or frames[depth + 1].code is _STEP
            while how == "yield" and code.co_flags & CO_COROUTINE and is_task:
                if value is not None:
                    v.lost("an event loop that waits")
                frame.stack.append(None)  # await asyncio.sleep(0): other tasks run, then this one
                how, value = _guarded(machine, frame)
            if how == "return" and code.co_name == "__init__" and code.co_argcount:  # of a class
                value = machine.overlay.value_in(frame.variables[0])
            if frame.suspended is not None:
                frame.suspended.state = "suspended" if how == "yield" else "done"
            else:
                frame.variables, frame.stack = [], []  # a function that is over holds nothing
            inner = frame
        if how == "raise":
            raise v.Raised(value)


def _filled_in(given: Any) -> Any:
    if type(given) is tuple:
        return tuple(map(_filled_in, given))
    return v.FutureTensor(requires_grad=False) if given is _GRADIENT else given


def hooks_of(
    nodes: Sequence[Any], kinds: Sequence[type], tensors: Iterable[Any], modules: Iterable[Module]
) -> Hooks:
    """Return the program's hooks that a call runs for these nodes of its graph, of these types,
    each with its arguments.

    A node does not expose its hooks, so they are found through the tensors and modules.
    """
    found: list[tuple[Any, v.Given]] = []
    names = [kind.__name__ for kind in kinds]
    leaves = [nodes[i].variable for i, name in enumerate(names) if name == _LEAF]
    for tensor in (each for each in (*leaves, *tensors) if is_exactly(each, *PLAIN_TENSORS)):
        found += [(hook, (_GRADIENT,)) for hook in (tensor._backward_hooks or {}).values()]
        after = tensor._post_accumulate_grad_hooks or {}
        found += [(hook, (tensor,)) for hook in after.values()]
    for module in modules if _OF_MODULES in names else ():
        own = object.__getattribute__(module, "__dict__")
        found += [(hook, (module, (_GRADIENT,))) for hook in own["_backward_pre_hooks"].values()]
        hooks = own["_backward_hooks"].values()
        found += [(hook, (module, (_GRADIENT,), (_GRADIENT,))) for hook in hooks]
    return found[:_MOST_HOOKS]


def _of_program(innermost: FrameType) -> list[FrameType]:
    """Return the frames from the innermost out to the outermost one of the user's code."""
    frames: list[FrameType] = []
    last = 0
    for each in islice(frames_from(innermost), _MOST_FRAMES):
        frames.append(each)
        if owner_of(each.f_code) == USER:
            last = len(frames)
            if each.f_code.co_name == "<module>":
                break
    return frames[: max(last, 1)]


def _run_checkpoints(machine: Machine, entry: FrameType | None) -> None:
    """Simulate the recomputations of reentrant checkpoints that the running engine call has yet to
    make: it makes them before it returns to any other code of the program.
    """
    own: dict[str, Any] = {} if entry is None else dict(local_variables(entry))
    now, seen = current_node(), set[Any]()
    roots = own.get("tensors", own.get("outputs", ()))
    roots = (roots,) if v.is_tensor(roots) else roots
    waiting = [node_of(root) for root in roots if now and v.is_tensor(root)]
    while waiting and len(seen) < _MOST_NODES:
        if (node := waiting.pop()) is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    left = [n for n in seen if is_reentrant(n) and n._sequence_nr() < now._sequence_nr()]
    for node in sorted(left, key=lambda node: -node._sequence_nr()):
        given = (v.FutureTensor() if each is None else each for each in node.inputs)
        recomputed = models.in_thread(machine, node.run_function, tuple(given), {})
        torch_models.run_backward(machine, [recomputed])


def _is_skipped(machine: Machine, frame: Frame, inner: Frame) -> bool:
    """Return whether a frame of torch or Python is skipped, because its effect is known.

    An optimizer's step uses gradients, and LBFGS calls its closure again.
    """
    file = frame.code.co_filename
    if frame.of_user:
        return False
    if "/torch/optim/" in file:
        if frame.code.co_name == "step" and frame.live is not None:
            own = dict(local_variables(frame.live))
            optimizer, closure = own.get("self"), own.get("closure")
            if file.endswith("lbfgs.py") and is_exactly(closure, FunctionType, types.MethodType):
                frame.live = None
                machine.frames.append(frame)
                machine.base = inner
                try:
                    models.in_thread(machine, closure, (), {})
                finally:
                    machine.frames.pop()
            if is_a(optimizer, torch.optim.Optimizer):
                machine.parted = True
        return True
    return "/asyncio/" in file


def _guarded(machine: Machine, frame: Frame) -> tuple[str, Any]:
    try:
        return machine.run(frame)
    except v.Raised as raised:
        return "raise", raised.value


def _resume(
    machine: Machine, frame: Frame, inner: Frame | None, how: str, value: Any
) -> tuple[str, Any]:
    """Give the result of the inner frame to the frame that waits for it, and run that frame on."""
    machine.read_at.clear()  # what is read there has another name
    is_over = frame.instruction.opname == "FOR_ITER" and how == "raise"
    if is_over and machine.is_instance(value, StopIteration) is True:
        opcodes.end_loop(frame)
        frame.index += 1
        how = "return"
    elif how != "raise":
        machine.frames.append(frame)
        machine.base = frame
        try:
            _take(machine, frame, inner, how, value)
            frame.index += 1
        except v.Raised as raised:
            how, value = "raise", raised.value
        finally:
            machine.frames.pop()
    if how == "raise":
        if frame.instruction.handler < 0:
            return how, value
        machine.enter_handler(frame, value)
    return _guarded(machine, frame)


def _take(machine: Machine, frame: Frame, inner: Frame | None, how: str, value: Any) -> None:
    instruction = frame.instruction
    name = instruction.opname
    if name == "FOR_ITER":
        try:
            frame.stack.append(_element(machine, frame.stack[-1], inner, how, value))
        except v.Exhausted:
            opcodes.end_loop(frame)
    elif name == "SEND":
        if how == "return" and inner is not None and inner.code.co_flags & CO_ASYNC_GENERATOR:
            machine.throw(StopAsyncIteration)
        is_wrapped = type(value) is v.Wrapped
        if how == "yield" and not is_wrapped:
            frame.stack.append(value)
        else:
            opcodes.end_send(frame, value.value if is_wrapped else value)
    elif name.startswith("UNPACK"):  # elements that it had before may be any
        of = MISSING if frame.live is None else on_stack(frame.live, len(frame.stack))
        if not iteration.is_iterator(of):
            v.lost(f"a call by {name}")
        try:
            given = [_element(machine, of, inner, how, value), *iteration.drain(machine, of)]
        except v.Exhausted:
            given = []
        after = instruction.arg >> 8 if name == "UNPACK_EX" else 0
        more = (instruction.arg & 0xFF) + (name == "UNPACK_EX")
        taints = v.unsure(machine.held(given))
        any_of = [v.Unknown(taints, "unpacked, partly read") for _ in range(more + after)]
        frame.stack += reversed([*any_of, *given[len(given) - after :]][-more - after :])
    elif instruction.is_call:
        frame.stack.append(_through(machine, frame, inner, how, value))
    elif name not in NO_RESULT:
        if how == "yield":
            v.lost(f"a generator under {name}")
        frame.push(value, instruction.null)


_HANDS_ON = ("next", "send", "run", "__next__", "anext")


def _through(machine: Machine, frame: Frame, inner: Frame | None, how: str, value: Any) -> Any:
    """Return what the call gives that a frame stands at, when the frame within it has ended."""
    names = frame.flow.names_of_call(frame.index)
    called = names[-1] if names else ""
    is_generator = inner is not None and inner.code.co_flags & SUSPENDED
    if is_generator and called in _HANDS_ON:
        if how == "return" and called in ("next", "send", "__next__"):
            machine.throw(StopIteration, *(() if value is None else (value,)))
        return value
    function, *given = _operands(frame)
    within = iteration.is_iterator if inner is None else partial(iteration.runs, code=inner.code)
    each = next((one for one in given if within(one)), None)
    if function is reduce:
        total = value if each is given[0] else v.Unknown(why="reduce, partly read")
        return machine.call(function, (*given[:2], total), {})
    if is_generator or iteration.is_iterator(each):
        rest = inner.suspended if inner is not None and each is None else each
        given = [value] if how == "yield" else []
        found = given if each is None else [_element(machine, each, inner, how, value)]
        if called == "next":
            return found[0]
        found += iteration.drain(machine, rest)
        return v.Unknown(v.unsure(machine.held(found)), f"{called}, partly read")
    if len(names) == 1 and called in ("sorted", "min", "max"):
        return v.Unknown(why=f"{called}, partly read")
    return value


def _element(machine: Machine, of: Any, inner: Frame | None, how: str, value: Any) -> Any:
    """Return what a live iterator gives, when the frame that ran within it has ended."""
    if inner is None or how == "yield" or not inner.code.co_flags & SUSPENDED:
        iteration.give(machine, of, None if inner is None else inner.code, value)
    return iteration.advance(machine, of)


def _operands(frame: Frame) -> list[Any]:
    """Return what a live frame calls and what it hands on, where it is in a call of C.

    A function of Python's has taken what it was given off the stack: it may be gone.
    """
    live, first = frame.live, len(frame.stack)
    if live is None or not frame.instruction.opname.startswith("CALL"):
        return [None]
    function, start = on_stack(live, first), first + 1
    if NULL_FIRST and function is MISSING:
        function, start = on_stack(live, first + 1), first + 2
    if is_exactly(function, FunctionType, types.MethodType):
        return [None]
    given = (on_stack(live, at) for at in range(start, frame.flow.depths[frame.index]))
    return [function, *(each for each in given if each is not MISSING)]


def start_at_call(user: FrameType, *, is_inner: bool = False, hooks: Hooks = ()) -> FromFrames:
    """Begin at the call to autograd that is under way, made in or below a frame of the user's; or
    ``is_inner``, by what the engine runs for another one. It runs these ``hooks``.
    """
    entry: FrameType | None = None
    is_known = False
    for each in frames_from(sys._getframe(1)):
        if id(each.f_code) in _ENTRIES:
            entry = each
        elif each is user or (is_inner and entry is not None):
            is_known = True
            break
    if entry is None or not is_known or entry.f_back is None:
        return FromFrames(user, lambda: None, hooks)
    gives = _GRADIENT if _ENTRIES[id(entry.f_code)] else None
    return FromFrames(entry.f_back, partial(_filled_in, gives), hooks)


def start_after(user: FrameType) -> FromFrames:
    """Begin when the call that a frame of the user's stands at has returned."""
    return FromFrames(user, lambda: None)


def start_before(user: FrameType, frame: FrameType) -> FromFrames:
    """Begin at the instruction that ``frame`` is about to run: that of the user's, unless an
    override runs in the place of what it calls.
    """
    return FromFrames(user, None) if user is frame else start_after(user)


@cache
def _expression(text: str) -> types.CodeType:
    return compile(text, "<expression>", "eval")


def values_of(texts: Iterable[str], frame: FrameType) -> list[Any]:
    """Return what expressions stand for in a frame; MISSING where only code of the user's that is
    not followed could tell.
    """
    space = {**frame.f_globals, **dict(local_variables(frame))}
    return [_value_of(text, space) for text in texts]


def _value_of(text: str, space: dict[str, Any]) -> Any:
    machine = Machine(KINDS, Question(), (), _MOST_OF_EXPRESSION)
    try:
        _, found = machine.run(Frame(_expression(text), space, space))
    except (v.Stop, v.Raised, LookupError, SyntaxError):
        return MISSING
    finally:
        machine.let_go()
    return MISSING if type(found) is v.Unknown or found is v.NULL else found


def in_words(fork: Fork) -> str:
    """Return what must hold at a branch: "`args.aux` is true"; empty where it has no words."""
    if owner_of(fork.code) != USER:
        return ""
    instruction = flow_of(fork.code).instructions[fork.at]
    site = site_at(fork.code, fork.at)
    if fork.turn or "JUMP" not in instruction.opname:
        return f"the loop of line {site.line} {'runs again' if fork.taken else 'ends'}"
    jumps = fork.taken == (instruction.jump <= fork.at)
    at = fork.at - 1
    while flow_of(fork.code).instructions[at].opname in ("TO_BOOL", "NOT_TAKEN", "CACHE") and at:
        at -= 1
    site = site_at(fork.code, at)  # the test; the jump itself may be placed at the whole statement
    text = source.line_of(site.file, site.line)[site.column - 1 : (site.end_column or 0) - 1]
    if not text or site.end_line not in (0, None, site.line):
        return f"the condition of line {site.line} is met"
    if "NONE" in instruction.opname:
        is_none = jumps != ("NOT_NONE" in instruction.opname)
        return f"`{text}` is {'None' if is_none else 'not None'}"
    return f"`{text}` is {'true' if jumps == ('TRUE' in instruction.opname) else 'false'}"
