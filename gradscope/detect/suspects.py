"""Scans the user's variables for containers and tensors that hold several iterations' graphs, and
measures these graphs: over how many iterations they go, what they hold, and how that grows.
"""

from __future__ import annotations

import ast
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import FrameType
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from gradscope.code import source
from gradscope.code.statements import data_lines, store_of
from gradscope.collect.calls import Guarded
from gradscope.collect.inspector import memory, weight
from gradscope.collect.marks import mark_of
from gradscope.collect.nodes import held, kind_of
from gradscope.collect.state import State
from gradscope.formatting import reached
from gradscope.model import BackwardCall, Holding, Site
from gradscope.model.variable_paths import Origin, Path, Step
from gradscope.program.reach import (
    Limits,
    Walk,
    named_tensors,
    paths_by_referrers,
    tensors_with_graph,
)
from gradscope.program.sites import Place, site_of
from gradscope.program.tensors import grad_of, held_node, version_of
from gradscope.rules import gs302
from gradscope.rules.base import NODE_BYTES
from gradscope.torch_private import NO_SEQUENCE_NR, DisableTorchFunction

# Iterations that are told apart in one graph, one bit each: all from the 127th back count as one.
_OLDEST = 127


@dataclass(slots=True)
class Extent:
    """What some tensors keep alive.

    ``numbers`` are the nodes of their graphs, without leaves, and ``nodes`` how many these are.
    ``nbytes`` is the size of the tensors themselves, of what the graphs saved, and of leaves that
    only one iteration uses. Of it, ``outputs`` are tensors that no graph saved, and ``modules``
    what was saved in each module. ``iterations`` says how many iterations the nodes are from, and
    ``each`` how many nodes and bytes each of these after the first has. ``versions`` are the
    versions of the leaves that the graphs reach, by id.
    """

    numbers: set[int] = field(default_factory=set)
    nodes: int = 0
    nbytes: int = 0
    iterations: int = 0
    each: tuple[float, float] = (0, 0)
    versions: dict[int, int] = field(default_factory=dict)
    outputs: int = 0
    modules: Counter[str] = field(default_factory=Counter)


class Spans:
    """Measures graphs during one scan: over which iterations they go, and what they hold.

    It holds nodes, so it must not outlive the scan. ``ticks`` are the times at which the iterations
    so far ended. At most ``most`` nodes are touched. The graphs of several tensors share most of
    their nodes, so the edges of each node are remembered, and a node is touched once.
    """

    def __init__(self, watch: State, ticks: Sequence[int], most: int) -> None:
        self._watch = watch
        self._ticks = ticks
        self._most = most
        self._masks: dict[Node, int] = {}
        self._numbers: dict[Node, int] = {}
        self._followed: dict[Node, tuple[Node, ...]] = {}

    @property
    def touched(self) -> int:
        """How many nodes were touched."""
        return len(self._followed)

    @property
    def now(self) -> float:
        """The seconds since the watch began."""
        return self._watch.elapsed()

    @property
    def is_full(self) -> bool:
        """True when no further node may be touched."""
        return len(self._followed) >= self._most

    def number(self, node: Node) -> int:
        """Return the number of a node, with the thread in it."""
        if not self._watch.generations.others:
            return self._watch.number_of(node)
        if node not in self._numbers:
            self._tell_threads(node)
        return self._numbers[node]

    def _tell_threads(self, root: Node) -> None:
        """Find the numbers, with threads, of the nodes of a graph that have none yet."""
        index: dict[Node, int] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node not in index:
                index[node] = len(index)
                stack += [] if node in self._numbers else self._following(node)
        watch = self._watch
        numbers = [self._numbers[n] if n in self._numbers else watch.number_of(n) for n in index]
        known = [
            n in self._numbers or mark_of(n) is not None or bool(watch.saved_by(n)) for n in index
        ]
        targets = [tuple(index[f] for f in self._followed.get(n, ()) if f in index) for n in index]
        told = watch.generations.tell_threads(numbers, known, targets)
        self._numbers.update(zip(index, told, strict=True))

    def iteration(self, node: Node) -> int:
        """Return how many iterations ago the node was built; 0 is after the last one ended."""
        return len(self._ticks) - self._iteration_of(self.number(node))

    def is_between(self, node: Node) -> bool:
        """Return whether the node was built after the first iteration and before the last one. What
        the first iteration built cannot be told from what the program built before its loop.
        """
        return 0 < self._iteration_of(self.number(node)) < len(self._ticks) - 1

    def place(self, node: Node) -> Place | None:
        """Return the line that built a node; if that is not known, of the nearest node below it."""
        marks = filter(None, map(mark_of, reached([node], self._following)))
        return next((mark.place for mark in marks if mark.place is not None), None)

    def time_of(self, number: int) -> tuple[int, int]:
        """Return when the node with this number was built, in a form that can be compared."""
        return self._watch.generations.time_here(number), number

    def iterations(self, root: Node) -> int:
        """Return from how many iterations the nodes of a graph are."""
        return self._mask(root).bit_count()

    def _iteration_of(self, number: int) -> int:
        """Return in which iteration the node with this number was built; 0 stands for the first one
        and for everything before it.
        """
        return bisect_right(self._ticks, self.time_of(number)[0])

    def extent(self, roots: Iterable[Node], tensors: Iterable[Tensor] = ()) -> Extent:
        """Return what these graphs and the ``tensors`` at their roots hold together.

        A storage is counted once, for the oldest iteration that has it.
        """
        found = Extent()
        storages: dict[int, tuple[int, int]] = {}
        saved: dict[int, str | None] = {}
        leaves: dict[Node, set[int]] = {}
        later = Counter[int]()
        seen: set[Node] = set()

        def hold(key: int, nbytes: int, iteration: int) -> None:
            if key:
                storages[key] = nbytes, min(iteration, storages.get(key, (0, iteration))[1])

        stack = list(roots)
        for root, tensor in zip(stack, tensors, strict=False):
            hold(*weight(tensor), self._iteration_of(self.number(root)))
        outputs = {*storages}
        while stack:
            node = stack.pop()
            if node in seen or (number := self.number(node)) == NO_SEQUENCE_NR:
                continue
            seen.add(node)
            found.numbers.add(number)
            later[iteration := self._iteration_of(number)] += 1
            for packed in self._watch.saved_by(node):
                hold(packed.storage, packed.nbytes, iteration)
                saved.setdefault(packed.storage, packed.module[0] if packed.module else "")
            if mark_of(node) is None and self._watch.history.was_suspended(number):
                for _, data in held(node, kind_of(type(node))):
                    if isinstance(data, Tensor):
                        hold(*(weighed := weight(data)), iteration)
                        saved.setdefault(weighed[0], None)
            following = self._following(node)
            stack += following
            for leaf in following:
                if kind_of(type(leaf)).is_leaf:
                    leaves.setdefault(leaf, set()).add(iteration)
        for leaf, iterations in leaves.items():
            variable: Tensor = leaf.variable  # type: ignore[attr-defined]
            found.versions[id(variable)] = version_of(variable)
            # A leaf that several iterations use, or a parameter, would be alive without these
            # graphs; the batch of one iteration is kept alive by its graph.
            if len(iterations) == 1 and not isinstance(variable, Parameter):
                hold(*memory(variable), *iterations)
                if (grad := grad_of(variable)) is not None:
                    hold(*memory(grad), *iterations)
        found.nbytes = sum(nbytes for nbytes, _ in storages.values())
        found.outputs = sum(storages[key][0] for key in outputs.difference(saved))
        for key, module in saved.items():
            if module is not None:
                found.modules[module] += storages.get(key, (0,))[0]
        found.nodes, found.iterations = later.total(), len(later)
        if len(later) > 1:
            del later[min(later)]
        added = sum(nbytes for nbytes, iteration in storages.values() if iteration in later)
        found.each = later.total() / (len(later) or 1), added / (len(later) or 1)
        return found

    def independent_terms(self, root: Node) -> int:
        """Return how many terms were added up to this node, none computed from the total before it.

        A loop with ``total = total + net(x).mean()`` has independent terms, one for each iteration.
        ``h = h + cell(x, h)`` has none: it is a recurrence, whose terms depend on the total.
        """
        terms = 0
        node = root
        while True:
            following = [n for n in self._following(node) if n._sequence_nr() != NO_SEQUENCE_NR]
            if len(following) != 2 or not type(node).__name__.startswith(("Add", "Sub")):
                break
            older, newer = sorted(following, key=lambda n: self.time_of(self.number(n)))
            first = min(map(self.time_of, self.extent((newer,)).numbers), default=(0, 0))
            if first <= self.time_of(self.number(older)):
                break
            terms += 1
            node = older
        return terms + 1 if terms else 0

    def are_apart(self, roots: Sequence[Node]) -> int:
        """Return how many of these graphs share no node, except leaves, with the graphs before
        them.
        """
        seen: set[int] = set()
        apart = 0
        for root in roots:
            numbers = self.extent((root,)).numbers
            apart += seen.isdisjoint(numbers)
            seen |= numbers
        return apart

    def _following(self, node: Node) -> tuple[Node, ...]:
        known = self._followed.get(node)
        if known is None:
            if self.is_full:
                return ()
            known = self._followed[node] = tuple(n for n, _ in node.next_functions if n is not None)
        return known

    def _mask(self, root: Node) -> int:
        """Return a number with one bit for each iteration that the graph has nodes of."""
        masks = self._masks
        stack = [root]
        entered: set[Node] = set()
        while stack:
            node = stack[-1]
            if node in masks:
                stack.pop()
                continue
            following = self._following(node)
            unknown = [n for n in following if n not in masks]
            if unknown and node not in entered:
                entered.add(node)
                stack += unknown
                continue
            stack.pop()
            is_leaf = node._sequence_nr() == NO_SEQUENCE_NR
            mask = 0 if is_leaf else 1 << min(self.iteration(node), _OLDEST)
            for each in following:
                mask |= masks.get(each, 0)
            masks[node] = mask
        return masks[root]


# Elements that a bounded deque may keep on purpose, `deque(maxlen=20)` for an average of the last
# ones; `deque(maxlen=10_000)`, a replay memory, is not to hold a graph of each.
_WINDOW = 200
# What a scan inspects of the variables: while the program runs, where it comes again and again; and
# at the end of the program or when memory ran out, where it comes once and must name what it finds.
_BUDGET = Limits(1_000, max_seconds=0.2, max_depth=12, max_items=100, window=_WINDOW)
LAST = Limits(30_000, max_seconds=5, max_depth=12, max_items=10_000, window=_WINDOW)
# Iterations that must be seen together before anything is suspected: two are there whenever the
# last loss is kept while the next is computed (`loss = net(x).mean()` in a loop).
_FEWEST = 3
# Tensors with graphs over several iterations that are compared with each other, the oldest first:
# each is searched for in the graphs of all others.
_MOST_CHAINS = 16
_MOST_MODULES = 20  # whose bytes are told apart: a page has no more colours for them


class Suspect(NamedTuple):
    """A holder of graphs of ``iterations`` iterations, with all its names, the shortest first.

    It is either a container (``is_container``) that holds at least one tensor of each iteration, or
    one tensor whose own graph goes back that far:

        losses.append(loss)      # a container
        total = total + loss     # one tensor

    ``is_scalar``: the tensors are losses or other single numbers. ``versions`` are the versions of
    the leaves that the graphs reach, by id. ``in_graph``: most of it is part of the graph of the
    call that has just ended. ``roots`` are the numbers of the tensors' nodes, and ``files`` those
    whose code was running. ``cut``: not everything was inspected, so it may be more. If no name is
    known, the line ``built`` says where it was built. ``held`` are all bytes by kind.
    """

    names: tuple[Path, ...]
    iterations: int
    nodes: int
    nbytes: int
    each: tuple[float, float]
    is_scalar: bool
    versions: dict[int, int]
    in_graph: bool
    roots: frozenset[int]
    device: str
    held: Holding
    is_container: bool = False
    files: tuple[str, ...] = ()
    cut: bool = False
    built: Site | None = None

    @property
    def key(self) -> tuple[Origin, str]:
        """What identifies the holder from scan to scan."""
        return self.names[0].origin, self.names[0].text

    @property
    def keys(self) -> set[tuple[Origin, str]]:
        """The same under each of its names: a later scan may see other variables."""
        return {(name.origin, name.text) for name in self.names}


@dataclass(slots=True)
class _Container:
    """A container: its names, the ids of its tensors, and from how many iterations these are."""

    names: list[Path]
    members: list[int]
    iterations: int


@dataclass(slots=True)
class Scan:
    """One inspection of what the variables of some frames hold. It holds nodes, and must be brief.

    ``numbers`` are the nodes of the call that has just ended. ``between_calls``: no backward call
    marks the iterations, so graphs count as different iterations if they share no node. ``last``:
    inspect more, because the program has ended.
    """

    frames: Sequence[FrameType]
    spans: Spans
    numbers: frozenset[int] = frozenset()
    between_calls: bool = False
    last: bool = False
    found: dict[int, tuple[Tensor, Node, list[Path]]] = field(default_factory=dict)
    """The tensors with a graph, by their ids."""

    def run(self) -> list[Suspect]:
        """Return the holders of several iterations' graphs."""
        budget = LAST if self.last else _BUDGET
        for tensor, paths in named_tensors(self.frames, budget):
            if (node := held_node(tensor)) is not None:
                self.found[id(tensor)] = tensor, node, paths
        containers = self._containers()
        inside = {number for group in containers for number in group.members}
        suspects = []
        for group in containers:
            nodes = [self.found[number][1] for number in group.members]
            names = tuple(sorted(group.names, key=lambda name: len(name.text)))
            extent = self.spans.extent(nodes, (self.found[number][0] for number in group.members))
            # A dict of a few running totals has few tensors, but each goes back over all
            # iterations.
            iterations = group.iterations if self.between_calls else extent.iterations
            suspect = self._suspect(names, extent, iterations, group.members)
            # The walk inspects no more elements of one container than that.
            cut = len(group.members) >= budget.max_items
            suspects.append(suspect._replace(is_container=True, cut=cut))
        suspects += self._chains([number for number in self.found if number not in inside])
        files, full = _files(self.frames), self.spans.is_full
        return [each._replace(files=files, cut=each.cut or full) for each in suspects]

    def _containers(self) -> list[_Container]:
        """Return the innermost containers that hold tensors of several iterations.

        For ``self.history = {"loss": [...], "accuracy": [...]}`` that is ``self.history["loss"]``,
        and not the dict.
        """
        groups: dict[tuple[Origin, str, tuple[Step, ...]], dict[int, Path]] = {}
        for number, (_, _, paths) in self.found.items():
            for path in paths:
                for i, step in enumerate(path.steps):
                    if step.kind in ("item", "entry", "hook", "cache"):
                        # Hooks and a cache have a name of their own: it ends with their step.
                        length = i if step.kind in ("item", "entry") else i + 1
                        group = groups.setdefault((path.origin, path.root, path.steps[:length]), {})
                        group.setdefault(number, path)
        chosen: dict[frozenset[int], _Container] = {}
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
            iterations = self._iterations(left) if len(left) >= _FEWEST else 0
            if iterations >= _FEWEST:
                chosen[frozenset(members)] = _Container([name], left, iterations)
                taken |= set(left)
        return list(chosen.values())

    def _iterations(self, numbers: Sequence[int]) -> int:
        """Return in how many iterations the tensors of one container were computed."""
        roots = [self.found[number][1] for number in numbers]
        if self.between_calls:
            return self.spans.are_apart(roots)
        return len({self.spans.iteration(root) for root in roots})

    def _chains(self, among: Sequence[int]) -> list[Suspect]:
        """Return the tensors whose graph goes back over several iterations; of each chain the
        oldest.

        In ``state = cell(x, state); total = total + state.sum()`` the state carries the graph from
        one iteration to the next. The total reaches the same nodes, and needs no finding of its
        own.
        """
        spans, found = self.spans, self.found
        measure = spans.independent_terms if self.between_calls else spans.iterations
        lengths = {number: measure(found[number][1]) for number in among}
        numbered = {n: spans.number(found[n][1]) for n in among if lengths[n] >= _FEWEST}
        upstream = sorted(numbered, key=lambda n: spans.time_of(numbered[n]))[:_MOST_CHAINS]
        names_of = {n: tuple(p.up_to(_before_items(p)) for p in found[n][2]) for n in upstream}
        stores = {n: store_of(names_of[n], _files(self.frames)) for n in upstream}
        carriers = [stores[n][0] for n in upstream if stores[n][1]]
        upstream = [n for n in upstream if stores[n][1] or not _is_read(names_of[n][0], carriers)]
        suspects: list[Suspect] = []
        explained: set[int] = set()  # sequence numbers of the chains' newest nodes
        named: set[tuple[Origin, str]] = set()
        for number in upstream:
            node, names = found[number][1], names_of[number]
            extent = spans.extent((node,), (found[number][0],))
            if not explained.isdisjoint(extent.numbers):
                continue
            explained.add(numbered[number])
            if (names[0].origin, names[0].text) in named:
                continue  # a different tensor of the same dict or list
            named.add((names[0].origin, names[0].text))
            length = lengths[number] if self.between_calls else extent.iterations
            suspects.append(self._suspect(names, extent, length, (number,)))
        return suspects

    def unheld(self, met: Iterable[Suspect]) -> Suspect | None:
        """Return what is kept of iterations between the first and the last, but by no variable that
        a scan reached, and who holds it, as far as that is known.

        It is sought among all tensors that the garbage collector tracks, except those of the
        suspects that scans have ``met``.
        """
        spans, known = self.spans, frozenset[int]().union(*(suspect.roots for suspect in met))
        numbers = dict[int, int]()
        for tensor in tensors_with_graph():
            if spans.is_full or (node := held_node(tensor)) is None:
                continue
            number = spans.number(node)
            if number not in known and spans.is_between(node):
                self.found[id(tensor)] = tensor, node, []
                numbers[id(tensor)] = number
        if not numbers:
            return None
        members = sorted(numbers, key=numbers.__getitem__)
        nodes = [self.found[each][1] for each in members]
        extent = spans.extent(nodes, (self.found[each][0] for each in members))
        places = Counter(place for node in nodes if (place := spans.place(node)) is not None)
        built = site_of(next(iter(places.most_common(1)), (None,))[0])
        walk = Walk(LAST)
        walk.enter_frames(self.frames)
        walk.run()
        newest = self.found[members[-1]]
        names = paths_by_referrers(newest[0], walk, {id(self.found), id(newest)})
        named = tuple(n.up_to(_before_items(n)) for n in names if n.origin.owner != "unnamed")
        if names and not named:
            return None  # only a cycle holds it, which the garbage collector will free
        suspect = self._suspect(named, extent, self._iterations(members), members)
        told = suspect._replace(is_container=True, built=built)
        return told._replace(files=_files(self.frames), cut=spans.is_full)

    def _suspect(
        self, names: tuple[Path, ...], extent: Extent, iterations: int, members: Sequence[int]
    ) -> Suspect:
        """Return what holds these tensors."""
        tensors = [self.found[number][0] for number in members]
        with DisableTorchFunction():
            is_scalar = all(tensor.dim() == 0 for tensor in tensors)
            device = str(tensors[0].device)
        in_graph = 2 * len(extent.numbers & self.numbers) > extent.nodes
        roots = frozenset(self.spans.number(self.found[number][1]) for number in members)
        each = extent.each
        if self.between_calls:  # without calls, no node can be assigned to an iteration
            each = extent.nodes / iterations, extent.nbytes / iterations
        saved, nodes = extent.nbytes - extent.outputs, extent.nodes * NODE_BYTES
        modules = dict(extent.modules.most_common(_MOST_MODULES))
        holding = Holding(0, self.spans.now, saved, extent.outputs, nodes, modules)
        known = each, is_scalar, extent.versions, in_graph, roots, device, holding
        return Suspect(names, iterations, extent.nodes, extent.nbytes, *known)


def _files(frames: Iterable[FrameType]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(frame.f_code.co_filename for frame in frames))


def _is_read(name: Path, stores: Iterable[Site | None]) -> bool:
    """Return whether one of these statements reads the variable with this name, and so passes on
    what it holds: the variable is then an effect, and not the cause.
    """
    statements = [source.statement_at(site) for site in stores if site is not None]
    reads = (node for each in statements if each is not None for node in source.reads_of(each))
    return any(ast.unparse(node) == name.text for node in reads)


def _before_items(path: Path) -> int:
    inner = (n for n, step in enumerate(path.steps, 1) if step.kind not in ("item", "entry"))
    return max(inner, default=0)


# Scans in which the same holder must have grown. Scans come at iterations 4, 6, 8, 12, 16 …, so a
# list that is emptied every few iterations is not seen to grow three times.
SIGHTINGS = 3
# Iterations from which on a holder counts as grown in each scan: a scan inspects no more elements
# of a container (``_BUDGET.max_items``), so it cannot see it grow any further.
_SATURATED = 100
# Iterations of one loop whose time is remembered, in 8 bytes each. The older half is forgotten
# first, and then counts as one iteration.
MOST_TICKS = 100_000

Key = tuple[Origin, str]
"""What tells the holders of different scans apart."""


class Sightings:
    """What one holder held in scan after scan, and how many iterations had run by then.

    Only scans in which it had grown are kept, because a holder may grow in bursts.
    """

    def __init__(self, count: int, suspect: Suspect) -> None:
        self.seen = [(count, suspect)]
        self.count, self.newest = count, suspect
        self.grows = True
        self.looks: list[Holding] = []
        """What it held at each scan; extrapolated if a scan could not inspect all of it."""
        self._note(count, suspect)

    def add(self, count: int, suspect: Suspect) -> None:
        """Note what the holder holds after ``count`` iterations."""
        last = self.newest.iterations
        # The function that stores into the holder may have returned by a later scan.
        files = dict.fromkeys((*suspect.files, *self.newest.files))
        suspect = suspect._replace(files=tuple(files))
        self.grows &= suspect.iterations >= last
        if suspect.iterations > last or last >= _SATURATED:
            self.seen = [*self.seen[-(SIGHTINGS - 1) :], (count, suspect)]
        self.count, self.newest = count, suspect
        self._note(count, suspect)

    def _note(self, count: int, suspect: Suspect) -> None:
        if not suspect.cut:
            self.looks = [*self.looks, replace(suspect.held, iterations=count)]
        elif self.looks and count > self.looks[-1].iterations > self.looks[0].iterations:
            ahead = self.looks[-1].ahead(self.looks[0], count, suspect.held.time)
            self.looks = [*self.looks, ahead]


@dataclass(slots=True)
class Emptied:
    """A holder that the program empties from time to time: what it held ``at_most`` in the scans of
    one loop. ``seen``: a scan has met it when it had just been emptied.
    """

    loop: CallLoop
    at_most: Sightings
    seen: bool = False


class CallLoop:
    """The backward calls made at one line, counted as iterations.

    One call is one iteration. Once an optimizer steps, all calls between two steps are one
    iteration, because gradients may be accumulated. Before the first step nothing tells iterations
    from the calls of layers, inner loops or searches. So a holder is judged when the leaves that it
    reaches have been trained since it was first seen, or after more calls than one step makes, or
    at the end.

    ``waits``: the calls are ``autograd.grad(create_graph=True)``. They are steps within something
    larger, such as the inner steps of MAML, if a later call runs what they have built; they were
    so far, in each ``usual`` iterations at most. ``before`` are the ends of iterations that are not
    counted here, from before it was known that an optimizer steps.
    """

    def __init__(
        self, last: Guarded, steps: int, *, waits: bool, usual: int = 0, before: Sequence[int] = ()
    ) -> None:
        self.call = self.count = 0
        self.before = len(before)
        self.waits, self.usual = waits, usual
        self.steps = steps
        self.starts = self.due = False
        self._next_due = 4  # iterations, to be scanned
        self.ticks = array("Q", before)
        self.holders: dict[Key, Sightings] = {}
        self.numbers: frozenset[int] = frozenset()
        self.begun, self.ended = array("Q"), array("Q")
        """When each of the calls began, and when it ended, if the loop ``waits``."""
        self.alive: list[tuple[int, int, int]] = []
        """For each scan: how many iterations had run, how many nodes were alive that a call had
        met, and how many saved tensors.
        """
        self.sought = 0
        """At how many of these scans a reference cycle had been searched without success."""
        self.unheld: gs302.KeptAlive | None = None
        """What is known of graphs that live on, but that no scan has found a holder of."""
        self.last = last
        self.done = False

    def begin(self, call: int, steps: int) -> None:
        """Begin a call; ``steps`` counts the steps of optimizers so far."""
        self.call = call
        self.starts = not steps or steps != self.steps or not self.count
        self.count += self.starts
        self.steps = steps
        self.due = self.starts and self.count == self._next_due
        if self.due:  # after the 4th, the 6th, 8th, 12th, 16th, 24th …
            self._next_due += self.count // (3 if self.count % 3 == 0 else 2)

    @property
    def calls_until_due(self) -> int:
        """How many calls there are at least before one that is due for a scan."""
        return self._next_due - self.count - 1

    @property
    def record(self) -> BackwardCall:
        """The record of the last call."""
        return self.last.record

    @property
    def writes_unseen(self) -> bool:
        """Whether the file with the calls modifies tensors through ``.data``, which no version
        shows.
        """
        site = self.record.site
        return site is not None and any(line.writes for line in data_lines(site.file).values())

    def end(self, call: Guarded) -> None:
        """End the call."""
        now, self.last = call.time, call
        if not self.starts:
            self.ticks.pop()
        self.ticks.append(now)
        if len(self.ticks) > MOST_TICKS:
            del self.ticks[: MOST_TICKS // 2]
        if len(self.ended) < len(self.begun):
            self.ended.append(now)

    def built(self, time: int) -> bool:
        """Return whether one of the calls was running at this time, and so built what was built."""
        i = bisect_left(self.ended, time)
        return i < len(self.ended) and self.begun[i] < time

    def grows(self, *, ended: bool) -> bool:
        """Return whether each of the last scans found at least one node more per iteration."""
        alive = self.alive[self.sought :][-SIGHTINGS:]
        return len(alive) >= (2 if ended else SIGHTINGS) and all(
            now - before >= last - first for (first, before, _), (last, now, _) in pairwise(alive)
        )

    def lasts(self) -> bool:
        """Return whether, in the last scans, at least one node or saved tensor more was alive per
        iteration. Only the last ones count, because garbage from before the loop may have gone
        before.
        """
        return len(self.alive) >= SIGHTINGS and all(
            sum(now[1:]) - sum(before[1:]) >= now[0] - before[0]
            for before, now in pairwise(self.alive[-SIGHTINGS:])
        )


def follow(
    before: dict[Key, Sightings], count: int, suspects: Iterable[Suspect]
) -> dict[Key, Sightings]:
    """Return the holders of this scan, each with what earlier scans saw of it."""
    now = {}
    for suspect in suspects:
        if (sightings := before.get(suspect.key)) is None:
            sightings = Sightings(count, suspect)
        else:
            sightings.add(count, suspect)
        now[suspect.key] = sightings
    return now
