"""Says of the nodes of a look where each was built, and whether it needs what it saved to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gradscope.collect.generations import OTHER, Generations
from gradscope.collect.look import Look
from gradscope.collect.mutations import node_site
from gradscope.collect.nodes import kind_of
from gradscope.model import Graph, Node, NodeState, Site
from gradscope.program.layouts import (
    class_bases,
    class_namespace,
    closure_of,
    derives,
    is_exactly,
    module_variables,
)
from gradscope.program.sites import HIDDEN, owner_of, site_of
from gradscope.torch_private import function_of


def node_at(look: Look, graph: Graph | None, i: int) -> Node:
    """Return the i-th node of a look as plain data."""
    token = look.tokens[i]
    if graph is not None and i < len(graph.nodes):
        drawn = graph.nodes[i]
        return drawn if drawn.site is not None else replace(drawn, site=site_of(token.place))
    state = NodeState.FREED if token.freed_by else NodeState.LIVE
    return Node(i, look.nodes[i].name(), state, token.sequence_nr, site=site_of(token.place))


def built_at(look: Look, generations: Generations, i: int) -> Site | None:
    """Return where a node was built: between what was built just before it and just after it."""
    token = look.tokens[i]
    if token.place is not None:
        return site_of(token.place)
    number = token.sequence_nr
    by = number // OTHER  # the thread
    known = [t for t in look.tokens if t.place is not None and t.sequence_nr // OTHER == by]
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
_MOST_FUNCTIONS = 100


def will_free(look: Look, i: int) -> bool:
    """Return whether a call that runs the i-th node leaves it so that it cannot be run again."""
    return look.will_run(i) and (
        needs_saved(look, i) if look.tokens[i].is_function else look.tokens[i].has_buffers
    )


def needs_saved(look: Look, i: int) -> bool:
    """Return whether running a node reads what it saved.

    A C++ node always does, also one that ``torch.compile`` made: that asks even where it saved
    nothing. A Python Function does where its code, or code that this hands on to, asks for it.
    """
    token, kind = look.tokens[i], type(look.nodes[i])
    if not token.is_function or kind_of(kind).is_compiled:
        return True
    cls = function_of(kind)
    return cls is None or _reads_saved(cls)


def _reads_saved(cls: Any) -> bool:
    """Search the backward of a Function, and the functions of the program that it names."""
    waiting: list[Any] = [getattr(cls, "backward", None), getattr(cls, "vjp", None)]
    seen: set[CodeType] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function = waiting.pop()
        while hasattr(function, "__wrapped__"):  # once_differentiable and other decorators
            function = function.__wrapped__
        function = getattr(function, "__func__", function)
        if type(function) is not FunctionType or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        names = frozenset(_named(function.__code__))
        if names & _READS:
            return True
        waiting += (f for f in _callees(function, cls, names) if owner_of(f.__code__) != HIDDEN)
    return False


def _named(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code mentions, and its texts: for ``getattr``."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _named(constant)


def _callees(function: FunctionType, cls: Any, names: frozenset[str]) -> Iterator[FunctionType]:
    """Yield the Python functions that a function can reach by the names in its code.

    They are looked up without running any code of the program's.
    """
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    found += [value for _, value in closure_of(function)]
    owners = [each for each in found if type(each) is ModuleType or derives(type(each), type)]
    spaces: list[Mapping[str, Any]] = []
    for owner in (cls, *owners):
        if type(owner) is ModuleType:
            spaces.append(module_variables(owner))
        else:
            spaces += map(class_namespace, class_bases(owner))
    found += [space[name] for space in spaces for name in names if name in space]
    for each in found:
        plain = each.__func__ if is_exactly(each, staticmethod, classmethod) else each
        if type(plain) is FunctionType:
            yield plain
