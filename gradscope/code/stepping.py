"""Reads in the source which steps and resets of gradients follow a backward call."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from gradscope.code import places, source
from gradscope.model import Site

_STEPS = frozenset({"step", "minimize"})
_ZEROES = frozenset({"zero_grad"})
_BACKWARDS = frozenset({"backward", "manual_backward"})
_MOST_DEEP = 3


class What(Enum):
    """What an event does: it runs a loss backward, steps an optimizer, or resets gradients."""

    BACKWARD = 1
    STEP = 2
    ZERO = 3


class Event(NamedTuple):
    """One call in the order in which the code makes them; ``target`` is the optimizer, module or
    loss, as written, ``among`` what the call is given.
    """

    what: What
    target: str
    site: Site
    among: tuple[str, ...] = ()


def events_after(chain: Sequence[Site]) -> Iterator[Event]:
    """Yield what follows a call, in its function and then in the functions around.

    ``chain`` begins with the call, followed by the calls that led to it. What stands before the
    call in a loop around it follows as well: in the next iteration.
    """
    for depth, site in enumerate(chain):
        region, loop = source.function_around(site), source.loop_around(site)
        here = (site.line, site.column)
        if depth:
            call = source.call_at(site)  # optimizer.step(closure), which calls backward in it
            event = None if call is None else _event(call, site)
            if event is not None and event.what is What.STEP:
                yield event
        after = loop or region
        found = _events(after, site, 0)
        yield from (e for e in found if _place(e) > here)
        if loop is not None:
            yield from (e for e in found if _place(e) < here)
            rest = _events(region, site, 0)
            yield from (e for e in rest if e.site.line > (loop.end_lineno or 0))


def events_before(site: Site) -> list[Event]:
    """Return what comes before a call in an iteration of the loop around it, or in its function."""
    region = source.loop_around(site) or source.function_around(site)
    return [e for e in _events(region, site, 0) if _place(e) < (site.line, site.column)]


def _place(event: Event) -> tuple[int, int]:
    return (event.site.line, event.site.column)


def _events(region: ast.AST, site: Site, depth: int) -> list[Event]:
    """Return the events of a region in the order of the source; those of a function that it calls
    count as made where it calls it.
    """
    found: list[Event] = []
    for call in _calls(region):
        here = places.of_node(call, site.file, site.function)
        event = _event(call, here)
        if event is not None:
            found.append(event)
        elif depth < _MOST_DEEP:
            inner = _function(site.file, source.called_name(call), region)
            if inner is not None:
                found += [e._replace(site=here) for e in _events(inner, site, depth + 1)]
    return sorted(found, key=lambda each: (each.site.line, each.site.column))


def _calls(region: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a region, not those of the functions defined in it."""
    waiting: list[ast.AST] = [*ast.iter_child_nodes(region)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _event(call: ast.Call, here: Site) -> Event | None:
    name = source.called_name(call)
    if not isinstance(call.func, ast.Attribute):
        return None
    target, given = ast.unparse(call.func.value), tuple(ast.unparse(each) for each in call.args)
    if name in _STEPS:
        return Event(What.STEP, target, here, given)
    if name in _ZEROES:
        return Event(What.ZERO, target, here, given)
    if name in _BACKWARDS:
        return Event(What.BACKWARD, target, here, given)
    return None


def _function(file: str, name: str, region: ast.AST) -> ast.AST | None:
    """Return the one function of a file that has this name."""
    found = [
        node
        for node in ast.walk(source.tree(file))
        if isinstance(node, ast.FunctionDef) and node.name == name and node is not region
    ]
    return found[0] if name and len(found) == 1 else None
