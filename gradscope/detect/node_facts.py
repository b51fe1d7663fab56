"""Finds where each inspected node was built, and whether it needs what it saved to run."""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from gradscope.code.bytecode import MISSING, flow_of
from gradscope.collect.generations import OTHER, Generations
from gradscope.collect.inspection import Inspection
from gradscope.collect.mutations import node_site
from gradscope.collect.nodes import kind_of
from gradscope.model import Graph, Node, NodeState, Site
from gradscope.program.containers import closure_of, is_a, is_exactly
from gradscope.program.sites import site_of
from gradscope.torch_private import function_of


def node_at(look: Inspection, graph: Graph | None, i: int) -> Node:
    """Return the i-th node of a look as plain data."""
    mark = look.marks[i]
    if graph is not None and i < len(graph.nodes):
        drawn = graph.nodes[i]
        return drawn if drawn.site is not None else replace(drawn, site=site_of(mark.place))
    state = NodeState.FREED if mark.freed_by else NodeState.LIVE
    return Node(i, look.nodes[i].name(), state, mark.sequence_nr, site=site_of(mark.place))


def built_at(look: Inspection, generations: Generations, i: int) -> Site | None:
    """Return where a node was built: between what was built just before it and just after it."""
    mark = look.marks[i]
    if mark.place is not None:
        return site_of(mark.place)
    number = mark.sequence_nr
    by = number // OTHER  # the thread
    known = [t for t in look.marks if t.place is not None and t.sequence_nr // OTHER == by]
    earlier_ones = [other for other in known if other.sequence_nr < number]
    later_ones = [other for other in known if other.sequence_nr > number]
    before = max(earlier_ones, key=lambda other: other.sequence_nr, default=None)
    after = min(later_ones, key=lambda other: other.sequence_nr, default=None)
    first = site_of(before.place) if before is not None else None
    last = site_of(after.place) if after is not None else None
    earlier, later = generations.around(number)
    since_call = until_call = False
    if earlier is not None and (before is None or before.sequence_nr < earlier[0]):
        first, since_call = site_of(earlier[1]), True
    if later is not None and (after is None or after.sequence_nr >= later[0]):
        last, until_call = site_of(later[1]), True
    # From one run of a call to the next may be all of a loop.
    one_line = not (since_call and until_call)
    return node_site(look.nodes[i].name(), first, last, one_line=one_line)


_READS = frozenset({"saved_tensors", "saved_variables", "maybe_clear_saved_tensors"})


def will_free(look: Inspection, i: int) -> bool:
    """Return whether a call that runs the i-th node leaves it so that it cannot be run again."""
    return look.will_run(i) and (
        needs_saved(look, i) if look.marks[i].is_function else look.marks[i].has_buffers
    )


def needs_saved(look: Inspection, i: int) -> bool:
    """Return whether running a node reads what it saved.

    A C++ node always does, also one that ``torch.compile`` made: that asks even where it saved
    nothing. A Python Function does where its code, or code that this hands on to, asks for it.
    """
    mark, kind = look.marks[i], type(look.nodes[i])
    if not mark.is_function or kind_of(kind).is_compiled:
        return True
    cls = function_of(kind)
    return cls is None or _reads_saved(cls)


def _reads_saved(cls: Any) -> bool:
    """Return whether the backward of a Function reads what it saved: only code that is given its
    context can. What it gives that to and cannot be found is taken to read it.
    """
    waiting: list[tuple[Any, int]] = [(cls.backward, 0), (cls.vjp, 0)]
    seen: set[tuple[int, int]] = set()
    while waiting:
        called, place = waiting.pop()
        if called is MISSING:
            return True
        function, place = _entered(called, place)
        if type(function) is not FunctionType or (id(function), place) in seen:
            continue
        seen.add((id(function), place))
        code = function.__code__
        if not _READS.isdisjoint(_named(code)):
            return True
        at = place if place < code.co_argcount else code.co_argcount + code.co_kwonlyargcount
        context = "".join(code.co_varnames[at : at + 1])
        for part in _codes_with(context, code):
            for way, at in flow_of(part).handed_on(context):
                waiting.append((_found(way, function), at))
    return False


def _entered(called: Any, place: int) -> tuple[Any, int]:
    """Return the function that calling something enters, and at which place it gets what the call
    is given at ``place``.
    """
    while not is_exactly(called, FunctionType, BuiltinFunctionType):
        if is_exactly(called, staticmethod, MethodType, classmethod):
            place += not is_exactly(called, staticmethod)
            called = called.__func__
        elif is_exactly(called, functools.partial):
            called, place = called.func, place + len(called.args)
        else:
            is_class = is_a(called, type)
            of, name = (called, "__init__") if is_class else (type(called), "__call__")
            return inspect.getattr_static(of, name, None), place + 1
    return called, place


def _found(way: Sequence[str], function: FunctionType) -> Any:
    """Return what a dotted name in a function's code leads to, without running any code of the
    program's; MISSING if that is not known.
    """
    root, *names = way or ("",)
    scopes = (dict(closure_of(function)), function.__globals__, vars(builtins))
    found = next((scope[root] for scope in scopes if root in scope), MISSING)
    for name in names:
        owner, found = found, inspect.getattr_static(found, name, MISSING)
        if type(found) is FunctionType and found is inspect.getattr_static(type(owner), name, None):
            found = MethodType(found, owner)
    return found


def _named(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code mentions, and its texts: for ``getattr``."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _named(constant)


def _codes_with(variable: str, code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of those within it that share a variable with it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and variable in constant.co_freevars:
            yield from _codes_with(variable, constant)
