"""Finds and names the objects that variables reach: by a bounded walk, then among the objects that
the garbage collector tracks.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import deque
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from gradscope.model.variable_paths import Kind, Origin, Path, Step
from gradscope.program import containers
from gradscope.program.containers import GENERATORS, Contents, is_exactly, layout_of, look_at
from gradscope.program.undisturbed import GCPaused, TracePaused
from gradscope.program.variables import is_module_level, local_variables, namespace_of
from gradscope.torch_private import FunctionNode


class Limits(NamedTuple):
    """How far a walk may go; ``max_items`` is how many elements of one container it inspects.

    ``max_seconds`` counts the thread's own time and only stops a runaway walk: a busy machine must
    not change what is found. A deque that can hold no more than ``window`` elements is passed over.
    """

    max_objects: int = 20_000
    max_seconds: float = 0.05
    max_depth: int = 16
    max_items: int = 200
    window: int = 0


# What a user asks for once may take some seconds.
ON_DEMAND = Limits(max_objects=500_000, max_seconds=5.0, max_depth=40, max_items=20_000)


_Link = tuple[int, Kind, Any]
"""How an object is held, and by which object number, or by the variables of origin ``~number``."""

# Holders that are remembered for each object, beside the first: names enough for any message.
_MOST_LINKS = 4
# Names of one tensor, the shortest first, and ways up that are tried to find them: holders that
# hold each other, as a module and its parent may, have no end of names.
_MOST_NAMES, _MOST_WAYS = 8, 64
_CLOCK = 32  # objects between two looks at the clock, so that these cost little


class Walk:
    """Walks from variables through the objects that they hold, to find and name tensors.

    Enter frames, ``run``, then ask. It holds all that it saw, so it must be brief. Objects are
    numbered and refer to each other by number, so that dropping the walk leaves no reference cycle.
    """

    def __init__(self, budget: Limits, wanted: Tensor | None = None) -> None:
        self._budget = budget
        self._wanted = wanted  # reported although it may hold no graph
        self._contents = Contents(budget.max_items, budget.window)
        self._objects: list[Any] = []
        self._links: list[_Link] = []
        self._depths: list[int] = []
        self._others: dict[int, list[_Link]] = {}
        self._index: dict[int, int] = {}
        self._tensors: list[int] = []
        self._origins: list[Origin] = []
        self.done = 0
        """How many objects it has read."""
        self._closed: set[int] = set()
        self._known = 0  # objects that have names, before libraries were entered
        self._started = time.thread_time()

    def enter_frames(self, frames: Iterable[FrameType]) -> None:
        """Start from the variables of these frames, then from the globals of their modules."""
        frames = tuple(frames)
        self._enter_variables(frames)
        for frame in frames:
            self.enter_globals(frame.f_globals, 0)

    def enter_libraries(self, frames: Iterable[FrameType]) -> None:
        """Continue, after a run, from the variables of frames of libraries.

        They only add names to tensors: whatever else they reach has a name of the user's by then.
        """
        self._known = len(self._objects)
        self._enter_variables(frames)

    def _enter_variables(self, frames: Iterable[FrameType]) -> None:
        for frame in frames:
            self._number(frame)
            if not is_module_level(frame):
                self._enter_locals(frame)

    def has_entered(self, found: object) -> bool:
        """Return whether the walk started from a frame, or from the variables in a mapping."""
        number = self._index.get(id(found))
        return number is not None and self._links[number][1] == "globals"

    def enter_named(
        self, named: Iterable[tuple[str, Any]], prefix: str, *, closed: bool = False
    ) -> None:
        """Start from objects that the user reaches by these names, each behind the prefix.

        If they are ``closed``, name them, but do not read them.
        """
        origin = self._origin(Origin("global", "<module>", "", 1, prefix))
        for name, value in named:
            self._add(value, (origin, "variable", name), 0)
            if closed:
                self._closed.add(id(value))

    def _enter_locals(self, frame: FrameType) -> None:
        code = frame.f_code
        where = (code.co_qualname, code.co_filename, code.co_firstlineno)
        owned, free = self._origin(Origin("local", *where)), self._origin(Origin("cell", *where))
        if (namespace := namespace_of(frame)) is not None:
            self._number(namespace)
        for name, value in local_variables(frame):
            self._add(value, (free if name in code.co_freevars else owned, "variable", name), 0)

    def enter_globals(self, variables: dict[str, Any], depth: int) -> None:
        """Start, or continue, from the variables of a module."""
        if id(variables) in self._index:
            return
        self._number(variables)
        name, file = variables.get("__name__"), variables.get("__file__")
        prefix = f"{name}." if depth and name != "__main__" else ""
        file = file if type(file) is str else ""
        origin = self._origin(Origin("global", "<module>", file, 1, prefix))
        for key, value in containers.named_first(variables):
            self._add(value, (origin, "variable", key), depth)

    def _enter_class(self, cls: type, depth: int) -> None:
        if id(cls) in self._index or not containers.is_user_class(cls):
            return
        origin = _origin_of_class(cls)
        self._number(cls, (self._origin(origin), "variable", origin.function), depth)

    def _origin(self, origin: Origin) -> int:
        self._origins.append(origin)
        return ~(len(self._origins) - 1)

    def _number(self, found: object, link: _Link | None = None, depth: int = 0) -> int:
        number = self._index[id(found)] = len(self._objects)
        self._objects.append(found)
        self._links.append(link or (-1, "globals", None))
        self._depths.append(depth)
        return number

    def _add(self, found: Any, link: _Link, depth: int) -> None:
        layout = layout_of(type(found))
        if layout.opaque:
            return
        number = self._index.get(id(found))
        if number is not None:
            if layout.is_class and link[1] == "variable":  # a class keeps its own name
                return
            if number < self._known and not layout.is_tensor:
                return
            others = self._others.setdefault(number, [])
            if len(others) < _MOST_LINKS:
                others.append(link)
            return
        if layout.is_class:
            self._enter_class(found, depth)
        elif layout.is_tensor:
            has_graph, has_more = look_at(found)
            if has_graph:
                self._tensors.append(self._number(found, link, depth))
            elif has_more or found is self._wanted:
                self._number(found, link, depth)
        else:
            self._number(found, link, depth)

    def run(self) -> None:
        """Walk breadth first, so that short names come first, until all is read or a limit is
        reached.
        """
        budget, objects, add = self._budget, self._objects, self._add
        while self.done < min(len(objects), budget.max_objects):
            number = self.done
            if number % _CLOCK == 0 and time.thread_time() - self._started > budget.max_seconds:
                return
            self.done += 1
            link, depth = self._links[number], self._depths[number] + 1
            if link[1] == "globals":  # a frame or a module's variables, already entered
                continue
            if depth > budget.max_depth or id(objects[number]) in self._closed:
                continue
            for kind, key, value in self._contents.of(objects[number]):
                if id(type(value)) in containers.OPAQUE:
                    continue
                if kind == "globals":
                    self.enter_globals(value, depth)
                else:
                    add(value, (number, kind, key), depth)

    def named_tensors(self) -> list[tuple[Tensor, list[Path]]]:
        """Return every tensor with a graph, with its names, the shortest first."""
        named = ((self._objects[number], [*self._paths(number)]) for number in self._tensors)
        return [(tensor, paths) for tensor, paths in named if paths]

    def paths_to(self, found: object) -> Iterator[Path]:
        """Return the names of an object; none for one that the walk did not see."""
        number = self._index.get(id(found))
        if number is not None and self._links[number][1] != "globals":
            yield from self._paths(number)

    @property
    def own(self) -> set[int]:
        """Ids of the containers in which the walk itself keeps what it saw."""
        return {id(self._objects), id(self.__dict__), id(self)}

    def _paths(self, number: int) -> Iterator[Path]:
        """The names of an object, the shortest first."""
        told: set[tuple[Origin, str]] = set()
        ways: deque[tuple[int, list[_Link]]] = deque([(number, [])])
        for _ in range(_MOST_WAYS):
            if not ways or len(told) == _MOST_NAMES:
                return
            number, rest = ways.popleft()
            for link in (self._links[number], *self._others.get(number, ())):
                way = [link, *rest]
                if link[0] >= 0:
                    if all(link[0] != parent for parent, _, _ in rest):  # else it leads in a circle
                        ways.append((link[0], way))
                    continue
                path = self._path(way)
                if (path.origin, path.text) not in told:
                    told.add((path.origin, path.text))
                    yield path

    def _path(self, way: list[_Link]) -> Path:
        start, _, root = way[0]
        return Path.of(self._origins[~start], root, (Step(kind, key) for _, kind, key in way[1:]))


def named_tensors(frames: Iterable[FrameType], budget: Limits) -> list[tuple[Tensor, list[Path]]]:
    """Return every tensor with a graph that the variables of these frames lead to, each once with
    its names, the shortest first.

    No code of the user's runs, no Node is touched, and nothing is kept.
    """
    with TracePaused(), GCPaused():  # or the budget goes to a trace, or to the program's garbage
        walk = Walk(budget)
        walk.enter_frames(frames)
        walk.run()
        return walk.named_tensors()


# Levels of referrers up to a variable; at each, the collector goes through all of Python's
# objects. A longer name no longer helps.
_MOST_LEVELS = 12
# Referrers of one level. A small integer or a module has thousands, and a name by way of these
# would say nothing.
_MOST_REFERRERS = 300
# Objects that the user writes as one step: an object, its __dict__, _modules in it, then the
# module; or a function, its closure, a cell, then what the cell holds.
_LONGEST_JUMP = 4
# Items of a container that is known to hold what is sought: all are looked at.
_MANY_ITEMS = 1_000_000


def paths_by_referrers(found: object, walk: Walk, own: set[int]) -> list[Path]:
    """Return the names of an object by way of its referrers, up to a variable or the last one.

    ``own`` are ids of our containers. A way ends where it meets an object that the walk has named.
    """
    modules = _module_namespaces()
    chains = _chains(found, walk, own | walk.own, modules)
    return [path for chain in chains if (path := _name(chain, walk, modules)) is not None]


def _module_namespaces() -> dict[int, str]:
    names: dict[int, str] = {}
    for name, module in (("__main__", sys.modules["__main__"]), *tuple(sys.modules.items())):
        if containers.derives(type(module), types.ModuleType):
            names.setdefault(id(containers.module_variables(module)), name)
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
        # Of a tuple no copy is made, which would itself be a referrer.
        for referrer in gc.get_referrers(*level):
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
            is_top = layout_of(cls).is_class or containers.derives(cls, FunctionNode)
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
    steps = list(steps_down(chain))
    known = next(walk.paths_to(top), None)
    if known is not None:
        origin, root = known.origin, known.root
        steps = [*known.steps, *steps]
    elif id(top) in modules:
        name = modules[id(top)]
        prefix = "" if name == "__main__" else f"{name}."
        origin = Origin("global", "<module>", containers.module_file(name), 1, prefix)
        root = str(steps.pop(0).key)
    elif type(top) is types.CellType:  # a variable of a running function: seen with its frame
        return None
    else:
        origin, root = _unnamed(top)
        del steps[: steps[0].kind == "frame"]  # what has the frame goes by the function's name
    return Path.of(origin, root, steps)


def steps_down(chain: list[Any]) -> Iterator[Step]:
    """The steps of a way down, named as the walk would, past what a user does not write."""
    contents, place = Contents(_MANY_ITEMS), 0
    while place + 1 < len(chain):
        below = chain[place + 1 : place + 1 + _LONGEST_JUMP]
        ahead = {id(held): jump for jump, held in enumerate(below, 1)}
        holder = chain[place]
        if (frame := _frame_of(holder)) is not holder and id(frame) not in ahead:
            # A generator refers to its variables without a frame between.
            yield Step(*contents.of(holder)[0][:2])
            holder = frame
        jump, step = 1, Step("inside", None)
        for kind, key, held in contents.of(holder):
            own = ahead.get(id(held), 0)
            if own > jump or (own == jump and step.kind == "inside"):
                jump, step = own, Step(kind, key)
        yield step
        place += jump


def _frame_of(found: Any) -> Any:
    """Return the frame of a generator or coroutine that has not ended; else the object itself."""
    names = GENERATORS.get(id(type(found)))
    return found if names is None else getattr(found, names[0]) or found


def _unnamed(top: Any) -> tuple[Origin, str]:
    cls = type(top)
    if containers.derives(cls, FunctionNode):
        return origin_of_context(top), "ctx"
    if layout_of(cls).is_class:
        return _origin_of_class(top), containers.class_name(top)
    if id(cls) in GENERATORS or cls is types.FrameType:
        code = top.f_code if cls is types.FrameType else getattr(top, GENERATORS[id(cls)][2])
        text = f"<{cls.__name__} {code.co_name}>"
        return Origin("unnamed", code.co_qualname, code.co_filename, code.co_firstlineno), text
    return Origin("unnamed", "", "", 0), f"<{containers.class_name(cls)}>"


def _origin_of_class(cls: type) -> Origin:
    file = containers.module_file(containers.module_of(cls))
    return Origin("class", containers.class_name(cls), file, 1)


def origin_of_context(context: object) -> Origin:
    """Return where the ``ctx`` of a Python Function is from: its ``forward``."""
    function = containers.class_namespace(type(context)).get("_forward_cls")
    if isinstance(function, type):
        for base in containers.class_bases(function):
            forward = containers.class_namespace(base).get("forward")
            code = getattr(getattr(forward, "__func__", None), "__code__", None)
            if isinstance(code, types.CodeType):
                return Origin("ctx", code.co_qualname, code.co_filename, code.co_firstlineno)
    return Origin("ctx", containers.class_name(type(context)), "", 0)


def tracked(base: type) -> list[Any]:
    """Return all objects of this class, or one derived from it; takes some tens of milliseconds."""
    derived: dict[int, bool] = {}
    found = []
    for each in gc.get_objects():
        cls = type(each)
        if id(cls) not in derived:
            derived[id(cls)] = containers.derives(cls, base)
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
