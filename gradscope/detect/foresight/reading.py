"""Follows a held tensor from the frames of a backward call to the next one that runs through it."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from gradscope.code import changes, doubts, source
from gradscope.code.liveness import (
    MISSING,
    RESULT,
    Effect,
    Read,
    all_reads,
    call_at,
    calls_after,
    is_exactly,
    left_after,
)
from gradscope.code.names import is_part, root_of
from gradscope.code.names import owner_of as owner_of_name
from gradscope.detect.foresight.loops import Loops, LoopsOfFrame
from gradscope.detect.foresight.objects import (
    Objects,
    Resolver,
    Target,
    attribute,
    function_of,
    names_that_change,
    takes_no_arguments,
)
from gradscope.detect.foresight.shared_graphs import Freeing, Held
from gradscope.model import Site
from gradscope.model.paths import Path
from gradscope.program.drivers import is_run_again
from gradscope.program.layouts import class_bases, class_namespace, derives, is_a, is_user_class
from gradscope.program.sites import place_in
from gradscope.program.standing import standing
from gradscope.program.variables import is_module_level

MOST_NAMES = 6
MOST_FRAMES = 8
_PLAIN = ("variable", "attribute", "item")
# `print(self)` between two calls stores nothing in it, and `agent.update(self)` may.
_HARMLESS_CALLS = frozenset(
    {
        *("print", "len", "list", "tuple", "dict", "zip"),
        *("enumerate", "isinstance", "type", "id", "repr", "str"),
    }
)
_WALKS = frozenset(
    {"modules", "children", "named_modules", "named_children", "apply", "setattr", "__dict__"}
)
"""Code that mentions one of these may change any part of a module."""

_MOST_INPUTS = 1_000
_SAME = ("list", "tuple")


@dataclass(frozen=True, slots=True)
class Reading:
    """A read of ``name`` that leads to another backward call, and the user's frame that reads it.

    ``again``: a library that was handed the code of the frame runs it again.
    """

    name: str
    read: Read
    frame: FrameType
    again: bool = False
    tracked: Tracked | None = None
    innermost: bool = False

    @property
    def backward(self) -> Site:
        """The backward call that will run through what was read."""
        assert self.read.backward is not None
        return self.read.backward


def possible_read(held: Held, frames: Sequence[FrameType], loops: Loops) -> Reading | None:
    """Return the nearest read of a tensor, by one of its names, that may lead to another backward
    call.

    ``frames`` are the user's, innermost first, ``loops`` what is known of the loops that they are
    in.
    """
    alive: dict[str, bool] = {}  # last steps of names that inner frames have: do they survive?
    carried: set[str] = set()
    for depth, frame in enumerate(frames[:MOST_FRAMES]):
        objects = Objects(frame)
        found = names_in(held.paths, frame, objects)
        ahead = loops.of(frame, objects, held.tensor, {each.read for each in found.values()})
        names = {name: each for name, each in found.items() if alive.get(last_step(name), True)}
        for name in carried:
            names.setdefault(name, Tracked(name))
        nearest = [*names.values()][:MOST_NAMES]
        for tracked in nearest:
            read = _first_danger(tracked, frame, objects, ahead)
            if read is not None:
                shown = shown_name(tracked.name, frame)
                return Reading(shown, read, frame, tracked=tracked, innermost=depth == 0)
        lefts = [(tracked, _left_by(tracked, frame, objects, ahead)) for tracked in nearest]
        if (reading := _read_when_run_again(lefts, frame, objects)) is not None:
            return reading
        outer = frames[depth + 1] if depth + 1 < len(frames) else None
        carried = set()
        survive = set()
        for tracked, left in lefts:
            if tracked.name in left or tracked.read in left:
                survive.add(last_step(tracked.name))
            if outer is not None:
                carried |= set(in_caller(left - {tracked.name}, frame.f_code, outer))
            alive[last_step(tracked.name)] = last_step(tracked.name) in survive
    return None


def _first_danger(
    tracked: Tracked, frame: FrameType, objects: Objects, ahead: LoopsOfFrame
) -> Read | None:
    """Return the nearest read from where the frame stands that leads to a backward call."""
    resolver = tracked.resolver(objects)
    if tracked.cached:
        reads = _reads_of_cache(tracked, frame, resolver)
    else:
        found = all_reads(*standing(frame), (tracked.read,), resolver, ahead)
        reads = found.get(tracked.read, ())
    return next((read for read in reads if read.is_dangerous), None)


def _read_when_run_again(
    lefts: Sequence[tuple[Tracked, frozenset[str]]], frame: FrameType, objects: Objects
) -> Reading | None:
    """Return the first dangerous read of a function that a library will call again, of what each
    tensor is held by when this run of the function is over.
    """
    code = frame.f_code
    held = {
        tracked.name if path == tracked.read else path: (
            tracked if path == tracked.read else Tracked(path)
        )
        for tracked, left in lefts
        for path in sorted(left - {RESULT})
    }
    for name, tracked in held.items() if held and is_run_again(frame) else ():
        root = root_of(name)
        if root in code.co_varnames and root not in code.co_cellvars and root != "self":
            continue
        found = all_reads(code, -1, (tracked.read,), tracked.resolver(objects))
        read = next((r for r in found.get(tracked.read, ()) if r.is_dangerous), None)
        if read is not None:
            return Reading(tracked.name, read, frame, again=True)
    return None


def _left_by(
    tracked: Tracked, frame: FrameType, objects: Objects, ahead: LoopsOfFrame
) -> frozenset[str]:
    """Return the names under which the object is held when the frame's function has returned."""
    resolver = tracked.resolver(objects)
    left = left_after(*standing(frame), (tracked.read,), resolver, ahead)
    return left.get(tracked.read, frozenset())


def _reads_of_cache(tracked: Tracked, frame: FrameType, resolver: Resolver) -> tuple[Read, ...]:
    """Return the reads of what a cached function returns where the frame's code calls it again."""
    code, lasti = standing(frame)
    return tuple(
        replace(read, name=tracked.name, site=call.site, after_back_edge=call.after_back_edge)
        for call in calls_after(code, lasti)
        if call.target == tracked.cached
        for read in all_reads(code, call.offset, (RESULT,), resolver).get(RESULT, ())
    )


def shown_name(name: str, frame: FrameType) -> str:
    """Return a name for the user; a result goes by the variable that it is assigned to."""
    if name != RESULT:
        return name
    statement = source.statement_at(place_in(frame).site)
    targets = sorted(changes.targets_of(statement)) if statement is not None else []
    return targets[0] if targets else "the result"


def last_step(name: str) -> str:
    """Return the last part of a path, ``.h`` of ``self.h``; of a variable, its name."""
    owner, last = owner_of_name(name)
    return last if owner else name


def in_caller(left: frozenset[str], code: CodeType, outer: FrameType) -> Iterator[str]:
    """Yield the names under which the caller has what a function left behind."""
    call = call_at(outer.f_code, outer.f_lasti)
    for path in left:
        if path == RESULT:
            yield RESULT
        elif call is not None and code.co_argcount and path.startswith(code.co_varnames[0] + "."):
            owner = call.target.rpartition(".")[0]
            if owner:
                yield owner + path[len(code.co_varnames[0]) :]


@dataclass(frozen=True, slots=True)
class Tracked:
    """A name, the path that liveness follows for it, and what finds the code that is called."""

    name: str
    read: str = ""
    owner: Any = None
    attribute: str = ""
    cached: str = ""

    def __post_init__(self) -> None:
        if not self.read:
            object.__setattr__(self, "read", self.name)

    @property
    def target(self) -> Target:
        """What the finder of code has to know of it."""
        owner = owner_of_name(self.read)[0]
        return Target(root_of(self.name), self.owner, self.attribute, owner)

    def resolver(self, objects: Objects) -> Resolver:
        """Return what finds the code that calls run."""
        return Resolver(objects, self.target)


def names_in(paths: Sequence[Path], frame: FrameType, objects: Objects) -> dict[str, Tracked]:
    """Return the names by which the code of a frame could read the tensor."""
    code = frame.f_code
    found: dict[str, Tracked] = {}
    for path in paths:
        origin = path.origin
        if origin.owner in ("local", "cell"):
            if (origin.function, origin.line) != (
                code.co_qualname,
                code.co_firstlineno,
            ) or origin.file != code.co_filename:
                continue
        elif origin.owner != "global" or origin.prefix or origin.file != _file_of(frame):
            continue
        if (
            origin.owner == "global"
            and not is_module_level(frame)
            and path.root in (*code.co_varnames, *code.co_cellvars)
        ):
            continue
        kinds = [step.kind for step in path.steps]
        if kinds[-1:] == ["cache"] and all(kind in _PLAIN for kind in kinds[:-1]):
            called = path.text.removeprefix("<lru_cache of ").removesuffix(">")
            wrapper = objects.find(called)
            if wrapper is not MISSING and takes_no_arguments(wrapper) and not _is_cleared(frame):
                found[path.text] = Tracked(path.text, cached=called)
        elif all(kind in _PLAIN for kind in kinds):
            owner, last = owner_of_name(path.text)
            holder = objects.find(owner) if owner else None
            name = last[1:] if last.startswith(".") else ""
            found[path.text] = Tracked(path.text, owner=holder, attribute=name)
            for getter in _getters(holder, name) if name and holder is not MISSING else ():
                alias = f"{owner}.{getter}"
                found[alias] = Tracked(path.text, alias, owner=holder, attribute=getter)
    return names_that_change(found, code, objects)


def _file_of(frame: FrameType) -> str:
    file = frame.f_globals.get("__file__")
    return file if type(file) is str else ""


def _is_cleared(frame: FrameType) -> bool:
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "cache_clear"
        for call in source.calls_in(source.tree(frame.f_code.co_filename))
    )


def _getters(holder: Any, name: str) -> Iterator[str]:
    """Yield the properties that return an attribute which only ``__init__`` stores."""
    if holder is None or not is_user_class(type(holder)):
        return
    getters, others = [], []
    for cls in class_bases(type(holder)):
        if not is_user_class(cls):
            continue
        for key, value in class_namespace(cls).items():
            if is_a(value, property):
                known = function_of(value.fget)
                if known is not None and name in known[0].co_names:
                    getters.append((key, known[0]))
            elif key != "__init__" and (known := function_of(value)) is not None:
                others.append(known[0])
    if any(_stores(code, name) for code in others):
        return
    for key, code in getters:
        own = f"{code.co_varnames[0]}.{name}" if code.co_argcount else ""
        if own and RESULT in left_after(code, -1, (own,)).get(own, ()):
            yield key


def _stores(code: CodeType, name: str) -> bool:
    region = source.function_around(Site(code.co_filename, code.co_firstlineno + 1))
    return any(
        t.rpartition(".")[2] == name
        for s in source.statements_of(region)
        for t in changes.targets_of(s)
    )


def doubted(reading: Reading, *, at_line: bool = False, known: bool = False) -> bool:
    """Return whether code on the way may have put something else in the tensor's place.

    A branch may have, or a call that cannot be followed. ``known``: all ways lead to the read, as
    far as code can be followed. ``at_line``: the innermost frame is about to run the line it
    stands at.
    """
    tracked, frame = reading.tracked, reading.frame
    if reading.again or tracked is None:
        return False
    if reading.read.maybe:
        return True
    starting = at_line and reading.innermost
    site = place_in(frame).site
    loop = source.loop_around(site)
    region = loop if loop is not None else source.function_around(site)
    if not known and _is_branching(reading, tracked.name, region, starting):
        return True
    is_module = is_a(tracked.owner, torch.nn.Module)
    owner = owner_of_name(tracked.name)[0]
    if not owner or not (is_module or is_user_class(type(tracked.owner))):
        return False
    objects = Objects(frame)
    calls = source.calls_in(region)
    later = (call for call in calls if loop is not None or call.lineno >= site.line)
    owners, resolver = {owner, root_of(tracked.name)}, tracked.resolver(objects)
    return any(_may_change(call, owners, objects, resolver) for call in later)


def _is_branching(reading: Reading, name: str, region: ast.AST, starting: bool) -> bool:
    """Return whether the source shows a branch or a loop that may put something else there."""
    read, site = reading.read, place_in(reading.frame).site
    loop = region if isinstance(region, source.LOOPS) else None
    line, read_at = site.line, read.site.line
    ahead = (read_at, read.site.column) > (line, 0 if starting else site.column)
    straight = not read.after_back_edge and read.site.function == site.function and ahead
    until = read_at if straight and (starting or read.effect is Effect.BACKWARD) else 0
    after = loop is None or bool(until)
    if doubts.stored_sometimes(region, name, line, read_at, after=after, until=until):
        return True
    here = site.file, site.function
    if read.via and read.site.file and (read.site.file, read.site.function) != here:
        inside = source.function_around(read.site)
        if doubts.stored_sometimes(inside, read.via, read_at, read_at):
            return True
    if read.after_back_edge and doubts.may_be_the_last(site):
        return True
    is_header = isinstance(loop, ast.For) and read_at == loop.lineno and not read.at_hand
    return is_header and isinstance(loop, ast.For) and not doubts.runs_over_parts(loop)


def _may_change(call: ast.Call, owners: set[str], objects: Objects, resolver: Resolver) -> bool:
    """Return whether a call may store an attribute of such an object, unseen."""
    target = ast.unparse(call.func)
    receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    is_given = any(ast.unparse(argument) in owners for argument in call.args)
    if not is_given and receiver not in owners:
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr in _WALKS:
        return receiver in owners
    if target in _HARMLESS_CALLS or is_a(objects.find(target), torch.nn.Module):
        return False
    known = resolver(target)
    if known is not None:
        return is_given and bool(_WALKS & {*known.code.co_names})
    holder = objects.find(receiver) if receiver in owners else MISSING
    if is_a(holder, torch.nn.Module) and isinstance(call.func, ast.Attribute):
        return (
            attribute(torch.nn.Module, call.func.attr) is MISSING
        )  # net.parameters(), net.train() change no state
    return True


def may_stop_before(reading: Reading, held: Held, freeing: Freeing) -> bool:
    """Return whether the coming call may stop before it comes to what will be freed.

    The engine runs only what lies between the roots and the inputs: an input has to be known that
    lies behind a node that will be freed.
    """
    if not source.runs_a_part(reading.backward):
        return False
    here, there = place_in(reading.frame).site, reading.backward
    named = source.inputs_at(there)
    if named is None or (here.file, here.function) != (there.file, there.function):
        return True
    known = _Inputs(reading.frame, here, there, again=reading.read.after_back_edge).of(named)
    return not any(freeing.comes_to(held, tensor) for tensor in known)


class _Inputs:
    """Finds the tensors that an expression names, where nothing stores the names before then."""

    def __init__(self, frame: FrameType, here: Site, there: Site, *, again: bool) -> None:
        self._objects = Objects(frame)
        loops = source.loops_around(here.file, here.line) if again else []
        region = source.function_around(here)
        self._stored = {
            target
            for statement in source.statements_of(region)
            if here.line <= statement.lineno <= there.line
            or (loops and source.spans(loops[-1], statement.lineno))
            for target in changes.targets_of(statement)
        }

    def of(self, node: ast.expr) -> Iterator[Tensor]:
        """Yield the tensors that are known."""
        match node:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for each in elements:
                    yield from self.of(each)
            case ast.Starred(value=inner):
                yield from self.of(inner)
            case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _SAME:
                yield from self.of(inner)
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[], keywords=[]):
                yield from _given_by(self._find(owner), method)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                yield from _tensors_in(self._find(node))
            case _:
                pass

    def _find(self, node: ast.expr) -> Any:
        path = ast.unparse(node)
        is_stored = any(path == each or is_part(path, each) for each in self._stored)
        return MISSING if is_stored else self._objects.find(path)


def _given_by(owner: Any, method: str) -> Iterator[Tensor]:
    """Yield what a method of an object gives that runs none of the user's code."""
    if is_exactly(owner, dict, OrderedDict) and method == "values":
        yield from _tensors_in([*dict.values(owner)])
    elif is_a(owner, Module) and method == "parameters":
        if attribute(owner, method) is not attribute(Module, method):  # one of the user's own
            return
        for each in Module.modules(owner):
            held = object.__getattribute__(each, "__dict__")["_parameters"]
            yield from (p for p in held.values() if derives(type(p), Parameter))


def _tensors_in(found: Any) -> Iterator[Tensor]:
    each = found[:_MOST_INPUTS] if is_exactly(found, list, tuple) else [found]
    yield from (one for one in each if derives(type(one), Tensor))
