"""Merges graphs into one, and decides which of its nodes share a box, so that a picture of any size
stays legible.

NOTE [Folding keeps the graph acyclic]
A fold may only join (1) a leaf with the node that uses it, and (2) neighbours in one linear order
of the remaining nodes in which every edge goes forward. Joining neighbours of such an order cannot
make a cycle. The order is: newest generation first; in a generation what one root alone needs
before what several share; then by age.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, groupby
from typing import NamedTuple

from gradscope.errors import GradscopeError, meant
from gradscope.formatting import common_module, followers_last, listed
from gradscope.model import Graph, Node, Root
from gradscope.render.pictures import Marking, Options


class Merged(NamedTuple):
    """The nodes of all graphs, each once.

    ``order`` lists the nodes by age, newest first. ``reach`` has for each node one bit per root
    that leads to it. ``of_last`` has for each node of the last graph its place here. Storages are
    numbered across all graphs.
    """

    nodes: list[Node]
    targets: list[list[int]]
    sources: list[list[int]]
    roots: list[Root]
    order: list[int]
    reach: list[int]
    of_last: list[int]
    not_looked_at: int = 0

    def is_shared(self, node: int) -> bool:
        """Return True when more than one root leads to the node."""
        return self.reach[node].bit_count() > 1


def merge(graphs: Sequence[Graph]) -> Merged:
    """Return one node per node of the program, as the latest look saw it.

    Nodes of two graphs with equal sequence number and name are the same one.
    """
    nodes: list[Node] = []
    roots: list[Root] = []
    known: dict[Hashable, int] = {}
    edges: dict[tuple[int, int, int], None] = {}
    place: list[int] = []
    several = len(graphs) > 1
    freed_by = {node.freed_by for graph in graphs for node in graph.nodes} - {None}
    plain = (graph.nodes for graph in graphs)
    renumbered = _renumbered(graphs) if several or len(freed_by) > 1 else plain
    for graph, own in zip(graphs, renumbered, strict=True):
        place = []
        for node in own:
            key = _identity(node) if several else None
            at = len(nodes) if key is None else known.setdefault(key, len(nodes))
            nodes[at : at + 1] = [node if node.index == at else replace(node, index=at)]
            place.append(at)
        for edge in graph.edges:
            edges.setdefault((place[edge.source], place[edge.target], edge.input_nr))
        for root in graph.roots:
            moved = replace(root, node=place[root.node])
            if moved not in roots:
                roots.append(moved)
    targets: list[list[int]] = [[] for _ in nodes]
    sources: list[list[int]] = [[] for _ in nodes]
    for source, target, _ in edges:
        targets[source].append(target)
        sources[target].append(source)
    order = _newest_first(nodes, targets, sources)
    nodes = _with_modules(nodes, targets, order)
    reach = _reach(targets, roots, order)
    missed = sum(graph.not_looked_at for graph in graphs)
    return Merged(nodes, targets, sources, roots, order, reach, place, missed)


def _with_modules(nodes: list[Node], targets: list[list[int]], order: list[int]) -> list[Node]:
    """Give nodes that saved nothing the module of those built around them.

    Nothing but their age is known of them. One that leads to leaves only (a weight's transpose)
    prepares what is built next; any other was built in what the nodes before and after it have in
    common. Such nodes have no module class.
    """
    aged = [nodes[at] for at in reversed(order) if not nodes[at].is_leaf]
    unknown = {n.index for n in aged if n.module is None and n.site is None and not n.saved}
    following: dict[int, str] = {}
    after = before = ""
    for node in reversed(aged):
        following[node.index] = after
        after = after if node.index in unknown else node.module or ""
    filled = list(nodes)
    for node in aged:
        if node.index not in unknown:
            before = node.module or ""
            continue
        module, leads_to = following[node.index], targets[node.index]
        if not leads_to or not all(nodes[target].is_leaf for target in leads_to):
            module = common_module((before, module))
        filled[node.index] = replace(node, module=module or None)
    return filled


def _renumbered(graphs: Sequence[Graph]) -> Iterator[Sequence[Node]]:
    """Yield the nodes of each graph with storages numbered across all; each graph numbers its own.

    A storage that is still held has the numbers of the graph it was seen in, a freed one those of
    the call that freed it. A node that an earlier graph had too shows which storages are the same.
    """
    numbers: dict[Hashable, int] = {}
    held: dict[Hashable, int] = {}
    for which, graph in enumerate(graphs):
        for node in graph.nodes:
            for at, tensor in enumerate(node.saved):
                known = held.get((_identity(node), at))
                if known is not None and not tensor.state.is_gone:
                    numbers[which, tensor.storage] = known
        nodes = []
        for node in graph.nodes:
            saved = []
            for at, tensor in enumerate(node.saved):
                of = ("freed", node.freed_by) if tensor.state.is_gone else which
                number = numbers.setdefault((of, tensor.storage), len(numbers) + 1)
                saved.append(replace(tensor, storage=number))
                if of == which and _identity(node) is not None:
                    held[_identity(node), at] = number
            nodes.append(replace(node, saved=tuple(saved)) if saved else node)
        yield nodes


def _identity(node: Node) -> Hashable | None:
    """Return what makes a node of two graphs the same one; None when nothing does."""
    if node.sequence_nr is not None:
        return (node.sequence_nr, node.name)
    if node.is_leaf and node.variable is not None:
        return (node.variable, node.variable_label)
    return None


def _newest_first(
    nodes: list[Node], targets: list[list[int]], sources: list[list[int]]
) -> list[int]:
    """Order by sequence number as far as edges allow: threads and double backward mix those up."""

    def age(place: int) -> tuple[bool, float, int]:
        # What leads nowhere, as a leaf, may come last.
        number = nodes[place].sequence_nr
        last = not targets[place] and bool(sources[place])
        return last, float("inf") if number is None else -number, place

    return followers_last(targets, age)


def _reach(targets: list[list[int]], roots: list[Root], order: list[int]) -> list[int]:
    reach = [0] * len(targets)
    for bit, root in enumerate(roots):
        reach[root.node] |= 1 << bit
    for node in order:
        for target in targets[node]:
            reach[target] |= reach[node]
    return reach


SMALL = 30  # a graph with no more nodes is drawn as it is: some layers and a loss

# Folding ends when at most so many boxes are left: a picture of these is read without scrolling.
#
#     for layer, norm in layers:  # of twelve, one is drawn, and how often it comes
#         x = x + layer(norm(x))
COMFORTABLE = 25

MOST = 150  # no picture has more boxes, unless folding is switched off

# Roots, and nodes of a finding, that always have a box of their own; if all had one, the picture
# of a freed graph of a thousand nodes would not be folded.
_PINNED = 20

# Nodes of one piece that repeats, and how many of its possible lengths are tried from each node:
# those at which the first node comes again. A block of ``x + relu(linear(relu(linear(x))))`` has
# `relu` twice.
_LONGEST, _CANDIDATES = 4_096, 12


class Fold(NamedTuple):
    """One or more nodes drawn as one box: ``why`` they share it, how often the piece repeats."""

    heads: tuple[int, ...]
    why: str = ""
    title: str = ""
    times: int = 1
    sample: int | None = None


class Folded(NamedTuple):
    """The parts in linear order.

    ``inlined`` has the leaves written into each head's box.
    """

    parts: list[Fold]
    inlined: dict[int, list[int]]
    generations: bool


def fold(merged: Merged, options: Options, marks: Marking) -> Folded:
    """Fold as little as possible.

    That is not at all, else leaves, alike generations, repeats, module calls, then neighbours.
    Raise GradscopeError if the options name what is not in the graph.
    """
    generations = len({n.built_after for n in merged.nodes if not n.is_leaf}) > 1
    small = len(merged.nodes) <= SMALL and options.focus is None and options.depth is None
    full = small or not options.fold
    inlined: dict[int, list[int]] = {}
    if options.fold:
        kept = {root.node for root in merged.roots} | set(marks.highlight)
        # A leaf that everything uses would draw its links across even a small picture.
        inlined = _inlined_leaves(merged, kept, users=4 if full else 1)
    gone = {leaf for leaves in inlined.values() for leaf in leaves}
    heads = _linear_order(merged, gone, generations)
    folding = _Folding(merged, options, marks, generations)
    folding.check_names()
    if full:
        parts = _singles(heads)
    elif options.focus in (None, "shared"):
        parts = folding.all(heads)
    else:
        shown_in = {one: head for head, leaves in inlined.items() for one in leaves}
        parts = folding.around_focus(heads, options.focus, shown_in)
    return Folded(parts, inlined, generations)


def _linear_order(merged: Merged, gone: set[int], generations: bool) -> list[int]:
    """Return the order of the note above; plain age where hand-made or threaded data contradict."""
    heads = [node for node in merged.order if node not in gone]
    if not generations and len(merged.roots) < 2:
        return heads

    def key(node: int) -> tuple[int, int, int]:
        # Leaves were there before everything, so they count to no generation.
        age = 1 if merged.nodes[node].is_leaf else -merged.nodes[node].built_after
        return (age if generations else 0, merged.reach[node].bit_count(), merged.reach[node])

    grouped = sorted(heads, key=key)
    place = {node: at for at, node in enumerate(grouped)}
    forward = all(place[n] < place.get(t, len(place)) for n in grouped for t in merged.targets[n])
    return grouped if forward else heads


class _Folding:
    """One pass over the heads; holds what all steps need to know."""

    def __init__(self, merged: Merged, options: Options, marks: Marking, generations: bool) -> None:
        self.merged = merged
        self.options = options
        self.marks = marks
        self.generations = generations
        self.pinned = {root.node for root in merged.roots[:_PINNED]}
        self.pinned.update(marks.highlight[:_PINNED])
        self.several = len(merged.roots) > 1 and any(
            merged.is_shared(h) and not merged.nodes[h].is_leaf for h in merged.order
        )

    def all(self, heads: Sequence[int]) -> list[Fold]:
        """Fold stretch by stretch."""
        stretches = [(kind, list(stretch)) for kind, stretch in groupby(heads, self._kind)]
        closed = sum(kind == "" for kind, _ in stretches) or 1
        budget = max(8, COMFORTABLE // closed)
        parts: list[Fold] = []
        for kind, stretch in stretches:
            only = kind.startswith("only ")
            if kind == "pin" or (only and len(stretch) < 3):
                parts += _singles(stretch)
            elif only:
                parts.append(Fold(tuple(stretch), "exclusive", kind))
            else:
                parts += self._fold_stretch(stretch, budget)
        return self._at_most(parts)

    def check_names(self) -> None:
        """Raise GradscopeError if the focus is not in the graph."""
        nodes, focus = self.merged.nodes, self.options.focus
        if focus in (None, "shared") or any(self._matches(n, focus) for n in self.merged.order):
            return
        names = [root.name for root in self.merged.roots]
        names += [node.module for node in nodes]
        names += [name for node in nodes for name in (node.name, node.variable)]
        known = list(dict.fromkeys(filter(None, names)))
        like = meant(focus, known) or f": it has {listed(known, 6)}"
        raise GradscopeError(f"nothing in this graph is called {focus!r}{like}")

    def around_focus(
        self, heads: Sequence[int], focus: str, shown_in: Mapping[int, int]
    ) -> list[Fold]:
        """Open what the focus names and its neighbours; join all else, stretch by stretch.

        ``shown_in`` has for each leaf without a box the node in whose box it is.
        """
        chosen = {node for node in self.merged.order if self._matches(node, focus)}
        chosen = {shown_in.get(node, node) for node in chosen}
        near = {n for c in chosen for n in (*self.merged.targets[c], *self.merged.sources[c])}
        shown = self.pinned | chosen
        if len(chosen) + len(near) <= COMFORTABLE:
            shown |= near
        parts: list[Fold] = []
        for inside, stretch in groupby(heads, shown.__contains__):
            if inside:
                parts += self._fold_stretch(list(stretch), MOST - COMFORTABLE)
            else:
                parts += _joined(_singles(stretch))
        return self._at_most(parts)

    def _at_most(self, parts: list[Fold]) -> list[Fold]:
        return parts if len(parts) <= MOST else self._join(parts, MOST)

    def _kind(self, head: int) -> str:
        """Return in which kind of stretch the node is, which are never joined with each other.

        "" is folded as needed, "only …" at once, "pin" never.
        """
        node, reach = self.merged.nodes[head], self.merged.reach[head]
        if head in self.pinned:
            return "pin"
        if self.several and reach.bit_count() == 1 and not node.is_leaf:
            bit = reach.bit_length()
            return f"only {self.merged.roots[bit - 1].name or f'root {bit}'}"
        return ""

    def _matches(self, head: int, focus: str) -> bool:
        node = self.merged.nodes[head]
        if focus == "finding":
            return head in self.marks.highlight
        if span := re.fullmatch(r"#(\d+)-(\d+)", focus):
            number = node.sequence_nr
            return number is not None and int(span[1]) <= number <= int(span[2])
        return (
            focus in (node.name, f"n{head}", node.module, node.variable)
            or bool(node.module and node.module.startswith(focus + "."))
            or any(root.name == focus and root.node == head for root in self.merged.roots)
        )

    def _fold_stretch(self, heads: Sequence[int], budget: int) -> list[Fold]:
        singles = _singles(heads)
        if self.options.depth is not None:
            calls = self._calls(singles, self.options.depth)
            return calls if len(calls) <= MOST else self._join(self._repeats(_each(calls)), budget)
        if len(singles) <= budget:
            return singles
        parts = self._alike_generations(singles)
        if len(parts) <= budget:
            return parts
        tries = [self._repeats(_each(parts))]
        deepest = max((self.merged.nodes[h].module or "").count(".") + 1 for h in heads)
        for depth in range(deepest, 0, -1):
            if len(tries[-1]) <= budget:
                return tries[-1]
            tries.append(self._repeats(_each(self._calls(parts, depth))))
        best = min(tries, key=len)
        # Joined neighbours show little, so joining has to make the picture a good deal smaller.
        return best if len(best) <= 2 * budget else self._join(best, budget)

    def _token(self, part: Fold) -> Hashable:
        """Return what is equal for parts that look alike.

        Numbers in module paths do not count, states do.
        """
        return (part.why, part.times, tuple(map(self._token_of, part.heads)))

    def _token_of(self, head: int) -> Hashable:
        node = self.merged.nodes[head]
        return (node.name, node.state, node.module and re.sub(r"\d+", "#", node.module))

    def _alike_generations(self, parts: list[Fold]) -> list[Fold]:
        """Of three or more generations that follow each other and look alike, keep the newest."""
        if not self.generations:
            return parts
        pieces = _split(parts, lambda part: self.merged.nodes[part.heads[0]].built_after)
        folded = self._repeats(pieces, saving=2)
        # The newest is folded further: it is no sample.
        return [part if part.why else part._replace(sample=None) for part in folded]

    def _repeats(self, pieces: list[list[Fold]], saving: int = 8) -> list[Fold]:
        """Of pieces that repeat themselves keep the newest, unless that is a single box anyway."""
        tokens = [tuple(map(self._token, piece)) for piece in pieces]
        folded: list[Fold] = []
        done = 0
        for repeat in find_repeats(tokens, saving=saving):
            newest = _flat(pieces[repeat.start : repeat.start + repeat.period])
            rest = _flat(pieces[repeat.start + repeat.period : repeat.stop])
            folded += _flat(pieces[done : repeat.start])
            if len(newest) == 1:
                folded.append(Fold(_heads(newest + rest), "repeat", times=repeat.times))
            else:
                sample = newest[0].heads[0]
                folded += [part._replace(sample=sample) for part in newest]
                folded.append(Fold(_heads(rest), "repeat", times=repeat.times - 1, sample=sample))
            done = repeat.stop
        return folded + _flat(pieces[done:])

    def _calls(self, parts: list[Fold], depth: int) -> list[Fold]:
        """Join neighbours with the same module path down to this depth: one part per call."""

        def scope(part: Fold) -> Hashable:
            path = (self.merged.nodes[part.heads[0]].module or "").split(".")
            if part.why or part.sample is not None or path == [""] or len(path) < depth:
                return part.heads
            return ".".join(path[:depth])

        calls: list[Fold] = []
        for piece in _split(parts, scope):
            title = scope(piece[0])
            if len(piece) == 1 or not isinstance(title, str):
                calls += piece
            else:
                calls.append(Fold(_heads(piece), "module", title))
        return calls

    def _join(self, parts: list[Fold], budget: int) -> list[Fold]:
        """Join neighbours into pieces of about equal size: the last resort."""

        def is_pinned(part: Fold) -> bool:
            return not self.pinned.isdisjoint(part.heads)

        pinned = sum(map(is_pinned, parts))
        # Each pinned part can leave one short piece before it.
        size = max(2, -(-(len(parts) - pinned) // max(1, budget - 2 * pinned - 1)))
        joined: list[Fold] = []
        for alone, stretch in groupby(parts, is_pinned):
            some = list(stretch)
            step = 1 if alone else size
            for at in range(0, len(some), step):
                joined += _joined(some[at : at + step])
        return joined


def _singles(heads: Iterable[int]) -> list[Fold]:
    return [Fold((head,)) for head in heads]


def _heads(parts: Iterable[Fold]) -> tuple[int, ...]:
    return tuple(head for part in parts for head in part.heads)


def _each(parts: Iterable[Fold]) -> list[list[Fold]]:
    return [[part] for part in parts]


def _flat(pieces: Iterable[list[Fold]]) -> list[Fold]:
    return list(chain.from_iterable(pieces))


def _split(parts: Sequence[Fold], key: Callable[[Fold], Hashable]) -> list[list[Fold]]:
    """Cut the parts wherever the key changes."""
    return [list(piece) for _, piece in groupby(parts, key)]


def _joined(parts: list[Fold]) -> list[Fold]:
    return parts if len(parts) < 2 else [Fold(_heads(parts), "rest")]


def _inlined_leaves(merged: Merged, kept: Set[int], *, users: int) -> dict[int, list[int]]:
    """Return for each node the leaves that are written into its box: of ``users`` or more each.

    ``kept`` nodes stay.
    """
    inlined: dict[int, list[int]] = {}
    for leaf, node in enumerate(merged.nodes):
        above = dict.fromkeys(merged.sources[leaf])
        if not node.is_leaf or leaf in kept or len(above) < users or merged.targets[leaf]:
            continue
        for user in above:
            inlined.setdefault(user, []).append(leaf)
    return inlined


class Repeat(NamedTuple):
    """From ``start`` on, the same ``period`` tokens follow each other ``times`` times."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The place after the repeat."""
        return self.start + self.period * self.times


def find_repeats(tokens: Sequence[Hashable], saving: int = 8) -> list[Repeat]:
    """Return the longest repeats, left to right, of three times at least that save ``saving``.

    A period can only be the distance to another occurrence of the first token, so only the
    next few of those are tried; whole blocks are compared at a time, which keeps 200,000 tokens
    within a fraction of a second.
    """
    numbers: dict[Hashable, int] = {}
    values = [numbers.setdefault(token, len(numbers)) for token in tokens]
    following = [0] * len(values)
    last: dict[int, int] = {}
    for place in range(len(values) - 1, -1, -1):
        following[place] = last.get(values[place], 0)
        last[values[place]] = place
    repeats = []
    place = 0
    while place < len(values):
        found = _repeats_at(values, following, place, saving)
        best = max(found, key=lambda repeat: repeat.stop, default=Repeat(place, 1, 1))
        if best.times > 1:
            repeats.append(best)
        place = best.stop
    return repeats


def _repeats_at(
    values: list[int], following: list[int], start: int, saving: int
) -> Iterator[Repeat]:
    """Yield the repeat of each period that the next occurrences of the first token allow, if it is
    long enough.
    """
    other = start
    for _ in range(_CANDIDATES):
        other = following[other]
        period = other - start
        if not 0 < period <= _LONGEST:
            return
        block = values[start:other]
        times = 1
        while values[start + times * period : start + (times + 1) * period] == block:
            times += 1
        if times >= 3 and (times - 1) * period >= saving:
            yield Repeat(start, period, times)
        if start + period * times == len(values):
            return
