"""Holds what a rehearsal recorded: where each tensor comes from, and where its path was cut."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from gradscope.formatting import counted, reached
from gradscope.model import Site
from gradscope.rules.base import told


class CutReason(StrEnum):
    """Why a value has no graph, though it was computed from one that has."""

    DETACH = "detach"
    DATA = "data"
    MODE = "mode"
    SAMPLE = "sample"
    INTEGERS = "integers"
    LEFT = "left"
    COPY = "copy"
    CREATE_GRAPH = "create_graph"
    CONSTANT = "constant"
    MARKED = "marked"
    CHECKPOINT = "checkpoint"
    FUNCTION = "function"
    OTHER = "other"
    INNER = "inner"
    """It was computed within the forward of a Function, which gives its result the graph."""


class ModeKind(StrEnum):
    """How grad mode was switched off."""

    DECORATOR = "decorator"
    WITH = "with"
    CALL = "call"
    LIBRARY = "library"


Route = tuple[Site, ...]
"""The lines of the program that led to something, the innermost first."""


class Birth(NamedTuple):
    """What a value was computed from, by what, and whether it has a graph.

    ``parents`` are numbers of values, ``route`` and ``mode`` those of a route and of a switch;
    ``leaf`` is that of a leaf, -1 of any other value.
    """

    parents: tuple[int, ...]
    how: str
    route: int
    has_graph: bool
    cut: CutReason | None = None
    mode: int = -1
    leaf: int = -1


class Mode(NamedTuple):
    """Where grad mode was switched off: ``name`` is ``no_grad``, or the library's function.

    ``skipped`` is the line whose exception has left out the one that would have turned it on again.
    """

    route: int
    kind: ModeKind
    name: str
    function: str = ""
    skipped: Site | None = None


class Leaf(NamedTuple):
    """A leaf as it was at the end; ``frozen`` and ``made`` are numbers of routes, or -1, and
    ``turn`` counts the parameters and optimizers in the order in which they were made.
    """

    name: str
    shape: str
    numbers: int
    requires_grad: bool
    is_parameter: bool
    frozen: int = -1
    made: int = -1
    optimizer: int = -1
    turn: int = -1


class EngineUse(NamedTuple):
    """A call of the engine: the values it started from, those that it was to differentiate by, and
    the leaves to which it gave a gradient, or would; ``lost`` are those to which its graph leads
    and no derivative gave one, ``unused`` the places of inputs to which it does not lead.
    """

    route: int
    roots: tuple[int, ...]
    has_graph: bool
    inputs: tuple[int, ...]
    reached: frozenset[int]
    accumulates: bool
    unused: tuple[int, ...] = ()
    lost: frozenset[int] = frozenset()
    values: int = 0
    """How many values there were then."""
    has_failed: bool = False


class StepUse(NamedTuple):
    """A step of an optimizer: of its leaves those with a gradient, and with one that is zero, and
    how many ``calls`` there were before.
    """

    optimizer: int
    route: int
    given: frozenset[int]
    zero: frozenset[int]
    calls: int = sys.maxsize


class Stepper(NamedTuple):
    """An optimizer: its name, its class, its leaves, where it was made, and when, as of leaves."""

    name: str
    kind: str
    leaves: tuple[int, ...]
    made: int = -1
    turn: int = -1


class Rehearsed:
    """How a rehearsal ended."""

    ended: str

    @property
    def stopped(self) -> bool:
        """Whether it ended before the program would have changed something outside."""
        return self.ended.startswith("stopped")

    @property
    def failed(self) -> bool:
        """Whether the program raised an exception."""
        return not self.stopped and self.ended not in ("end", "enough")


@dataclass(frozen=True)
class Origins(Rehearsed):
    """Where all values of a rehearsal come from; ``ended`` is how it did. ``functions`` are the
    values that Functions gave, each with where their backward begins.
    """

    origins: Sequence[Birth] = ()
    routes: Sequence[Route] = ()
    modes: Sequence[Mode] = ()
    leaves: Sequence[Leaf] = ()
    calls: Sequence[EngineUse] = ()
    steps: Sequence[StepUse] = ()
    optimizers: Sequence[Stepper] = ()
    ended: str = ""
    functions: Mapping[int, Site] = field(default_factory=dict)

    def site(self, route: int) -> Site | None:
        """Return the innermost line of a route."""
        return next(iter(self.routes[route]), None) if route >= 0 else None

    def told(self, leaves: Iterable[int]) -> str:
        """Return leaves in a sentence: the modules that are all of them, or their names."""
        own = {*leaves}
        named = {n: leaf.name for n, leaf in enumerate(self.leaves) if leaf.name}
        if not own & named.keys():
            return counted(len(own), "tensor")
        others = [name for n, name in named.items() if n not in own]
        return told([named[n] for n in sorted(own & named.keys())], others)

    def with_leaf(self, value: int, leaf: Leaf) -> Origins:
        """Return the record with one more leaf: a value that was computed."""
        number = len(self.leaves)
        changed = self.origins[value]._replace(leaf=number)
        origins = [*self.origins[:value], changed, *self.origins[value + 1 :]]
        calls = [
            call._replace(reached=call.reached | {number})
            if value in self.before(call.roots, with_graph=True)
            else call
            for call in self.calls
        ]
        return replace(self, origins=origins, leaves=[*self.leaves, leaf], calls=calls)

    def before(self, starts: Iterable[int], *, with_graph: bool = False) -> Iterator[int]:
        """Yield some values and all that they were computed from, the nearest first; only those
        ``with_graph``, if so asked.
        """

        def wanted(values: Iterable[int]) -> Iterator[int]:
            return (n for n in values if self.origins[n].has_graph or not with_graph)

        return reached(wanted(starts), lambda value: wanted(self.origins[value].parents))

    @cached_property
    def leaves_behind(self) -> Sequence[frozenset[int]]:
        """For each value the leaves that it was computed from, cut off from them or not."""
        found: list[frozenset[int]] = []
        known: dict[frozenset[int], frozenset[int]] = {}
        for origin in self.origins:
            own = {origin.leaf} if origin.leaf >= 0 else set()
            sets = {found[parent] for parent in origin.parents if found[parent]}
            if not own and len(sets) == 1:
                found.append(next(iter(sets)))
                continue
            every = frozenset(own.union(*sets))
            found.append(known.setdefault(every, every))
        return found

    @cached_property
    def after(self) -> Sequence[list[int]]:
        """For each value those that were computed from it."""
        found: list[list[int]] = [[] for _ in self.origins]
        for number, origin in enumerate(self.origins):
            for parent in set(origin.parents):
                found[parent].append(number)
        return found
