"""Finds and names objects that no bounded walk reaches, by what Python's collector tracks."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from gradscope.model.paths import Origin, Path, Step
from gradscope.program import layouts
from gradscope.program.containers import GENERATORS, Contents, layout_of, look_at
from gradscope.program.layouts import is_exactly
from gradscope.program.reach import ON_DEMAND, Walk
from gradscope.torch_private import FunctionNode

_MOST_LEVELS = 12
_MOST_REFERRERS = 300  # of one level: beyond that the names no longer help
_LONGEST_JUMP = 4  # an object, its __dict__, _modules or a closure, a cell, then what it holds
_MANY_ITEMS = 1_000_000


def paths_to(found: object, walk: Walk, own: set[int]) -> list[Path]:
    """Return the names of an object by way of its referrers, up to a variable or the last one.

    ``own`` are ids of our containers. A way ends where it meets an object that the walk has named.
    """
    modules = _module_namespaces()
    chains = _chains(found, walk, own | walk.own, modules)
    return [path for chain in chains if (path := _name(chain, walk, modules)) is not None]


def _module_namespaces() -> dict[int, str]:
    names: dict[int, str] = {}
    for name, module in (("__main__", sys.modules["__main__"]), *tuple(sys.modules.items())):
        if layouts.derives(type(module), types.ModuleType):
            names.setdefault(id(layouts.module_variables(module)), name)
    return names


class _Referrer(NamedTuple):
    """An object, what it refers to one level lower, and the direct holder of the object sought."""

    itself: Any
    below: Any
    direct: int


def _chains(found: object, walk: Walk, own: set[int], modules: dict[int, str]) -> list[list[Any]]:
    """Ways down to the object, each from the topmost holder; the shortest first."""
    seen: dict[int, _Referrer] = {}
    tops: list[Any] = []
    loose: list[Any] = []  # what nothing refers to
    level: tuple[Any, ...] = (found,)
    own = own | {id(seen), id(tops), id(loose)}
    for _ in range(_MOST_LEVELS):
        wanted = {id(held) for held in level}
        held_by_any: set[int] = set()
        above: list[Any] = []
        for referrer in gc.get_referrers(
            *level
        ):  # of a tuple no copy is made, which would itself be a referrer
            if id(referrer) in own or referrer is level or referrer is above:
                continue
            held = [part for part in gc.get_referents(referrer) if id(part) in wanted]
            held_by_any.update(map(id, held))
            if not held or id(referrer) in seen or referrer is found:
                continue
            if walk.has_entered(_frame_of(referrer)):  # its variables are known
                continue
            direct = id(referrer) if held[0] is found else seen[id(held[0])].direct
            seen[id(referrer)] = entry = _Referrer(referrer, held[0], direct)
            own.add(id(entry))
            cls = type(referrer)
            is_top = layout_of(cls).is_class or layouts.derives(cls, FunctionNode)
            if is_top or id(referrer) in modules or next(walk.paths_to(referrer), None):
                tops.append(referrer)
            elif len(above) < _MOST_REFERRERS:
                above.append(referrer)
        loose += [held for held in level if id(held) not in held_by_any and held is not found]
        if not above:
            break
        level = tuple(above)
    named = {seen[id(top)].direct for top in tops}
    tops += [top for top in loose if seen[id(top)].direct not in named]
    tops += _tops_of_cycles(seen, {seen[id(top)].direct for top in tops})
    return [_down(top, seen, found) for top in tops]


def _tops_of_cycles(seen: dict[int, _Referrer], named: set[int]) -> list[Any]:
    """Return, for each direct holder that only a cycle keeps, the nearest object of a class.

    That is one that is more than a plain container.
    """
    tops: dict[int, Any] = {}
    for itself, _, direct in seen.values():
        if direct not in named and (direct not in tops or is_exactly(tops[direct], *_PLAIN)):
            tops[direct] = itself
    return list(tops.values())


_PLAIN = (dict, list, tuple, types.CellType)


def _down(top: Any, seen: dict[int, _Referrer], found: object) -> list[Any]:
    chain = [top]
    while chain[-1] is not found:
        chain.append(seen[id(chain[-1])].below)
    return chain


def _name(chain: list[Any], walk: Walk, modules: dict[int, str]) -> Path | None:
    top = chain[0]
    steps = list(_steps(chain))
    known = next(walk.paths_to(top), None)
    if known is not None:
        origin, root = known.origin, known.root
        steps = [*known.steps, *steps]
    elif id(top) in modules:
        name = modules[id(top)]
        prefix = "" if name == "__main__" else f"{name}."
        origin, root = (
            Origin("global", "<module>", layouts.module_file(name), 1, prefix),
            str(steps.pop(0).key),
        )
    elif type(top) is types.CellType:  # a variable of a running function: seen with its frame
        return None
    else:
        origin, root = _unnamed(top)
        del steps[: steps[0].kind == "frame"]  # what has the frame goes by the function's name
    return Path.of(origin, root, steps)


def _steps(chain: list[Any]) -> Iterator[Step]:
    """The steps of a way down, named as the walk would, past what a user does not write."""
    contents, place = Contents(_MANY_ITEMS), 0
    while place + 1 < len(chain):
        ahead = {
            id(held): jump
            for jump, held in enumerate(chain[place + 1 : place + 1 + _LONGEST_JUMP], 1)
        }
        holder = chain[place]
        if (frame := _frame_of(holder)) is not holder and id(frame) not in ahead:
            # A generator refers to its variables without a frame between.
            yield Step(*contents.of(holder)[0][:2])
            holder = frame
        jump, step = 1, Step("inside", None)
        for kind, key, held in contents.of(holder):
            if ahead.get(id(held), 0) > jump or (
                ahead.get(id(held)) == jump and step.kind == "inside"
            ):
                jump, step = ahead[id(held)], Step(kind, key)
        yield step
        place += jump


def _frame_of(found: Any) -> Any:
    """Return the frame of a generator or coroutine that has not ended; else the object itself."""
    names = GENERATORS.get(id(type(found)))
    return found if names is None else getattr(found, names[0]) or found


def _unnamed(top: Any) -> tuple[Origin, str]:
    cls = type(top)
    if layouts.derives(cls, FunctionNode):
        return origin_of_context(top), "ctx"
    if layout_of(cls).is_class:
        module = layouts.class_namespace(top).get("__module__")
        name = layouts.class_name(top)
        return Origin("class", name, layouts.module_file(str(module)), 1), name
    if id(cls) in GENERATORS or cls is types.FrameType:
        code = top.f_code if cls is types.FrameType else getattr(top, GENERATORS[id(cls)][2])
        text = f"<{cls.__name__} {code.co_name}>"
        return Origin("unnamed", code.co_qualname, code.co_filename, code.co_firstlineno), text
    return Origin("unnamed", "", "", 0), f"<{layouts.class_name(cls)}>"


def origin_of_context(context: object) -> Origin:
    """Return where the ``ctx`` of a Python Function is from: its ``forward``."""
    function = layouts.class_namespace(type(context)).get("_forward_cls")
    if isinstance(function, type):
        for base in layouts.class_bases(function):
            forward = layouts.class_namespace(base).get("forward")
            code = getattr(getattr(forward, "__func__", None), "__code__", None)
            if isinstance(code, types.CodeType):
                return Origin("ctx", code.co_qualname, code.co_filename, code.co_firstlineno)
    return Origin("ctx", layouts.class_name(type(context)), "", 0)


def tracked(base: type) -> list[Any]:
    """Return all objects of this class, or one derived from it; takes some tens of milliseconds."""
    derived: dict[int, bool] = {}
    found = []
    for each in gc.get_objects():
        cls = type(each)
        if id(cls) not in derived:
            derived[id(cls)] = layouts.derives(cls, base)
        if derived[id(cls)]:
            found.append(each)
    return found


def tensors_with_graph() -> Iterator[Tensor]:
    """Return all tensors with a graph; no Node is touched by asking."""
    return (tensor for tensor in tracked(Tensor) if look_at(tensor)[0])


def contexts() -> Iterator[tuple[Path, Tensor]]:
    """Return the tensors with a graph that are attributes of a ``ctx``, with their names."""
    reader = Contents(ON_DEMAND.max_items)
    for context in tracked(FunctionNode):
        for kind, name, held in reader.of(context):
            if kind == "attribute" and layout_of(type(held)).is_tensor and look_at(held)[0]:
                origin = origin_of_context(context)
                yield Path.of(origin, "ctx", [Step(kind, name)]), held
