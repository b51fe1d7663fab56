"""Scans the user's variables for containers and tensors that hold several iterations' graphs."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import TypeAlias

from torch import Tensor
from torch.autograd.graph import Node

from gradscope.code.source import statement_at
from gradscope.code.stores import store_of
from gradscope.detect.leaks.spans import Extent, Spans
from gradscope.model import Site
from gradscope.model.paths import Origin, Path, Step
from gradscope.program.reach import Budget, named_tensors
from gradscope.program.sites import Place
from gradscope.program.tensors import held_node
from gradscope.torch_private import DisableTorchFunction

_WINDOW = 200  # iterations that a bounded deque may keep on purpose
_BUDGET = Budget(5_000, max_seconds=0.01, max_depth=12, max_items=100, window=_WINDOW)
_LAST = Budget(100_000, max_seconds=0.2, max_depth=12, max_items=10_000, window=_WINDOW)
_FEWEST = 3  # iterations that must be seen together before anything is suspected
_MOST_CHAINS = 16

Mark: TypeAlias = tuple[int, str | None]


@dataclass(frozen=True, slots=True)
class Suspect:
    """What holds graphs of ``iterations`` iterations, under all its names, the shortest first.

    A container holds one tensor or more of each iteration; else one tensor's own graph goes back
    that far. ``is_scalar``: the tensors are losses or other single numbers. ``in_graph``: part of
    the graph of the call itself. ``files`` are those of the code that was running. ``cut``: not
    everything was looked at, so it may be more. ``mark`` tells it by a node that it goes on to hold
    and by its attribute; ``is_told``: a mark that was told.
    """

    names: tuple[Path, ...]
    iterations: int
    nodes: int
    nbytes: int
    is_scalar: bool
    in_graph: bool
    is_container: bool = False
    files: tuple[str, ...] = ()
    cut: bool = False
    mark: Mark = (0, None)
    is_told: bool = False

    @property
    def key(self) -> tuple[Origin, str]:
        """What tells suspects of different scans apart."""
        return self.names[0].origin, self.names[0].text


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one scan found; ``named`` says which variable held what a line had saved."""

    suspects: tuple[Suspect, ...]
    named: dict[Place, Path]


@dataclass(slots=True)
class _Group:
    """A container: its names, the ids of the tensors in it, and how many iterations they are of."""

    names: list[Path]
    members: list[int]
    iterations: int


_Found = dict[int, tuple[Tensor, Node, list[Path]]]


def scan(
    frames: Sequence[FrameType],
    spans: Spans,
    numbers: frozenset[int],
    told: frozenset[Mark],
    *,
    between_calls: bool,
    last: bool = False,
) -> Scanned:
    """Return what the variables of these frames hold.

    ``numbers`` are those of the nodes of the call that has just ended, ``told`` the marks of what
    was told. ``between_calls``: no backward call marks the iterations, so only what was computed
    apart counts as another one. ``last``: look further, as the program has ended.
    """
    budget = _LAST if last else _BUDGET
    found = _tensors(frames, budget)
    files = tuple(dict.fromkeys(frame.f_code.co_filename for frame in frames))
    containers = _containers(found, spans, between_calls)
    inside = {number for group in containers for number in group.members}
    suspects = []
    for group in containers:
        nodes = [found[number][1] for number in group.members]
        extent = spans.extent(nodes)
        tensors = [found[number][0] for number in group.members]
        names = tuple(sorted(group.names, key=lambda name: len(name.text)))
        suspect = _suspect(names, extent, group.iterations, tensors, numbers)
        cut = len(group.members) >= budget.max_items  # of a larger one only so many are looked at
        suspect = replace(suspect, is_container=True, cut=cut)
        suspects.append(_marked(suspect, {node._sequence_nr() for node in nodes}, told))
    chains = {n: held for n, held in found.items() if n not in inside}
    suspects += _chains(chains, spans, numbers, frames, between_calls, told)
    named: dict[Place, Path] = {}
    if between_calls:
        for _, node, paths in chains.values():
            for place in spans.extent((node,)).places:
                named.setdefault(place, paths[0])
    full = spans.is_full
    suspects = [replace(each, files=files, cut=each.cut or full) for each in suspects]
    return Scanned(tuple(suspects), named)


def _tensors(frames: Sequence[FrameType], budget: Budget) -> _Found:
    return {
        id(tensor): (tensor, node, paths)
        for tensor, paths in named_tensors(frames, budget)
        if (node := held_node(tensor)) is not None
    }


def _containers(found: _Found, spans: Spans, between_calls: bool) -> list[_Group]:
    """The innermost containers that hold tensors of several iterations."""
    groups: dict[tuple[Origin, str, tuple[Step, ...]], dict[int, Path]] = {}
    for number, (_, _, paths) in found.items():
        for path in paths:
            for i, step in enumerate(path.steps):
                if step.kind in ("item", "entry"):
                    group = groups.setdefault((path.origin, path.root, path.steps[:i]), {})
                    group.setdefault(number, path)
    chosen: dict[frozenset[int], _Group] = {}
    taken: set[int] = set()
    # The innermost first, and of those that share tensors the one that holds the most.
    order = sorted(groups.items(), key=lambda item: (-len(item[0][2]), -len(item[1])))
    for (origin, root, steps), members in order:
        name = next(iter(members.values())).up_to(len(steps))
        known = chosen.get(frozenset(members))
        if known is not None:
            if all((n.origin, n.root) != (origin, root) for n in known.names):
                known.names.append(name)
            continue
        left = [number for number in members if number not in taken]
        iterations = _iterations(found, spans, left, between_calls) if len(left) >= _FEWEST else 0
        if iterations >= _FEWEST:
            chosen[frozenset(members)] = _Group([name], left, iterations)
            taken |= set(left)
    return list(chosen.values())


def _iterations(found: _Found, spans: Spans, numbers: Sequence[int], between_calls: bool) -> int:
    """In how many iterations the tensors of one container were computed."""
    roots = [found[number][1] for number in numbers]
    if between_calls:
        return spans.are_apart(roots)
    return len({spans.iteration(root) for root in roots})


def _chains(
    found: _Found,
    spans: Spans,
    numbers: frozenset[int],
    frames: Sequence[FrameType],
    between_calls: bool,
    told: frozenset[Mark],
) -> list[Suspect]:
    """The tensors whose graph goes back over several iterations, of each chain the oldest."""
    lengths = {}
    for number, (_, node, _) in found.items():
        length = spans.independent_terms(node) if between_calls else spans.iterations(node)
        if length >= _FEWEST:
            lengths[number] = length
    upstream = sorted(lengths, key=lambda n: found[n][1]._sequence_nr())[:_MOST_CHAINS]
    names_of = {n: tuple(path.up_to(_before_items(path)) for path in found[n][2]) for n in upstream}
    files = [frame.f_code.co_filename for frame in frames]
    stores = {n: store_of(names_of[n], files) for n in upstream}
    carriers = [stores[n][0] for n in upstream if stores[n][1]]
    upstream = [n for n in upstream if stores[n][1] or not _is_read(names_of[n][0], carriers)]
    first = {stores[n][0] or n: place for place, n in reversed([*enumerate(upstream)])}
    upstream.sort(key=lambda n: (first[stores[n][0] or n], not stores[n][1]))
    suspects: list[Suspect] = []
    explained: set[int] = set()  # sequence numbers of the chains' newest nodes
    named: set[tuple[Origin, str]] = set()
    for number in upstream:
        tensor, node, _ = found[number]
        extent = spans.extent((node,))
        if not explained.isdisjoint(extent.numbers):
            continue
        explained.add(node._sequence_nr())
        names = names_of[number]
        if (names[0].origin, names[0].text) in named:
            continue  # another tensor of the same dict or list
        named.add((names[0].origin, names[0].text))
        length = lengths[number] if between_calls else spans.told_apart(extent.numbers)
        suspect = _suspect(names, extent, length, (tensor,), numbers)
        held = extent.numbers if names[0].attribute is not None else ()  # else one goes on from it
        suspects.append(_marked(suspect, held, told, node._sequence_nr()))
    return suspects


def _marked(
    suspect: Suspect, held: Collection[int], told: frozenset[Mark], newest: int | None = None
) -> Suspect:
    """Return a suspect, which holds nodes of these numbers, with its mark."""
    attribute = suspect.names[0].attribute
    is_told = any(number in held and of == attribute for number, of in told)
    number = min(held) if newest is None else newest
    return replace(suspect, mark=(number, attribute), is_told=is_told)


def _is_read(name: Path, stores: Iterable[Site | None]) -> bool:
    """Return whether one of these stores reads what has this name, so that it passes it on."""
    statements = (statement_at(site) for site in stores if site is not None)
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node) == name.text
        for statement in statements
        if statement is not None
        for node in ast.walk(statement)
    )


def _suspect(
    names: tuple[Path, ...],
    extent: Extent,
    iterations: int,
    tensors: Iterable[Tensor],
    numbers: frozenset[int],
) -> Suspect:
    with DisableTorchFunction():
        is_scalar = all(tensor.dim() == 0 for tensor in tensors)
    in_graph = 2 * len(extent.numbers & numbers) > extent.nodes
    return Suspect(names, iterations, extent.nodes, extent.nbytes, is_scalar, in_graph)


def _before_items(path: Path) -> int:
    length = len(path.steps)
    while length and path.steps[length - 1].kind in ("item", "entry"):
        length -= 1
    return length
