"""Decides which nodes of a graph share a box, so that a picture of any size stays legible.

NOTE [Folding keeps the graph acyclic]
A fold may only join (1) a leaf with the node that uses it, and (2) neighbours in one linear order of the remaining
nodes in which every edge goes forward. Joining neighbours of such an order cannot make a cycle. The order is: newest
generation first; in a generation what one root alone needs before what several share; then by age.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from gradscope.render.pictures.leaves import absorb_leaves
from gradscope.render.pictures.merging import Merged
from gradscope.render.pictures.options import Options
from gradscope.render.pictures.picture import Marks
from gradscope.render.pictures.repeats import find_runs

SMALL = 30
"""A graph of at most so many nodes is drawn as it is."""

COMFORTABLE = 40
"""Folding goes on until at most so many boxes are left."""

MOST = 150
"""No picture has more boxes, unless folding is switched off."""

_PINNED = 20
"""So many roots, and so many nodes of a finding, have a box of their own in any case."""


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that share a box (or stand alone), ``why`` they do, and how often the same piece is in it."""

    heads: tuple[int, ...]
    why: str = ""
    title: str = ""
    times: int = 1
    sample: int | None = None


@dataclass(frozen=True, slots=True)
class Folded:
    """The parts in linear order, the leaves written into each head's box, and the nodes that have a box of no part."""

    parts: list[Part]
    inlined: dict[int, list[int]]
    absorbed: dict[int, int]
    generations: bool
    notes: list[str] = field(default_factory=list)


def fold(merged: Merged, options: Options, marks: Marks) -> Folded:
    """Fold as little as possible: not at all, leaves, alike generations, repeats, module calls, then neighbours."""
    generations = len({n.built_after for n in merged.nodes if not n.is_leaf}) > 1
    full = not options.fold or (
        len(merged.nodes) <= SMALL and options.focus is None and options.depth is None
    )
    kept = {root.node for root in merged.roots} | set(marks.highlight) | {marks.failing}
    # A leaf that everything uses would draw its links across even a small picture.
    inlined, absorbed = (
        absorb_leaves(merged, kept, users=4 if full else 1, views=not full)
        if options.fold
        else ({}, {})
    )
    gone = set(absorbed) | {leaf for leaves in inlined.values() for leaf in leaves}
    heads = _linear_order(merged, gone, generations)
    notes: list[str] = []
    if full:
        return Folded([Part((head,)) for head in heads], inlined, absorbed, generations, notes)
    folding = _Folding(merged, options, marks, generations)
    parts = (
        folding.around_focus(heads, notes)
        if options.focus not in (None, "shared")
        else folding.all(heads)
    )
    return Folded(parts, inlined, absorbed, generations, notes)


def _linear_order(merged: Merged, gone: set[int], generations: bool) -> list[int]:
    """The order of the note at the top; plain age where hand-made or threaded data contradict it."""
    heads = [node for node in merged.order if node not in gone]
    if not generations and len(merged.roots) < 2:
        return heads

    def key(node: int) -> tuple[int, int, int]:
        # Leaves were there before everything, so they count to no generation.
        age = (
            0
            if not generations
            else 1
            if merged.nodes[node].is_leaf
            else -merged.nodes[node].built_after
        )
        return (age, merged.reach[node].bit_count(), merged.reach[node])

    grouped = sorted(heads, key=key)
    place = {node: at for at, node in enumerate(grouped)}
    forward = all(place[n] < place.get(t, len(place)) for n in grouped for t in merged.targets[n])
    return grouped if forward else heads


class _Folding:
    """One pass over the heads; holds what all steps need to know."""

    def __init__(self, merged: Merged, options: Options, marks: Marks, generations: bool) -> None:
        self.merged = merged
        self.options = options
        self.marks = marks
        self.generations = generations
        self.pinned = set(marks.highlight[:_PINNED]) | {
            root.node for root in merged.roots[:_PINNED]
        }
        if marks.failing is not None:
            self.pinned.add(marks.failing)
        self.several = len(merged.roots) > 1 and any(
            merged.is_shared(h) and not merged.nodes[h].is_leaf for h in merged.order
        )

    def all(self, heads: list[int]) -> list[Part]:
        """Fold stretch by stretch; what the user opened gets a stretch and a share of the boxes of its own."""
        stretches: list[tuple[str, list[int]]] = []
        for head in heads:
            kind = self._kind(head)
            if not stretches or stretches[-1][0] != kind:
                stretches.append((kind, []))
            stretches[-1][1].append(head)
        closed, opened = (
            sum(kind == wanted for kind, _ in stretches) or 1 for wanted in ("", "open")
        )
        budget, most = max(8, COMFORTABLE // closed), max(8, (MOST - COMFORTABLE) // opened)
        parts: list[Part] = []
        for kind, stretch in stretches:
            if kind == "pin":
                parts += [Part((head,)) for head in stretch]
            elif kind.startswith("only "):
                parts += (
                    [Part((h,)) for h in stretch]
                    if len(stretch) < 3
                    else [Part(tuple(stretch), "exclusive", kind)]
                )
            else:
                parts += self._fold_stretch(stretch, most if kind == "open" else budget)
        return parts if len(parts) <= MOST else self._join(parts, MOST)

    def _kind(self, head: int) -> str:
        """Which stretches may not be joined: "" is folded as needed, "only …" at once, "open" late, "pin" never."""
        if head in self.pinned:
            return "pin"
        if self._opened(head):
            return "open"
        if (
            self.several
            and self.merged.reach[head]
            and not self.merged.is_shared(head)
            and not self.merged.nodes[head].is_leaf
        ):
            root = self.merged.roots[self.merged.reach[head].bit_length() - 1]
            name = root.name or f"root {self.merged.reach[head].bit_length()}"
            if name not in self.options.expand:
                return f"only {name}"
        return ""

    def _opened(self, head: int) -> bool:
        node = self.merged.nodes[head]
        for key in self.options.expand:
            if node.module is not None and (
                node.module == key or node.module.startswith(key + ".")
            ):
                return True
            span = re.fullmatch(r"#(\d+)-(\d+)", key)
            if (
                span
                and node.sequence_nr is not None
                and int(span[1]) <= node.sequence_nr <= int(span[2])
            ):
                return True
        return False

    def _fold_stretch(self, heads: list[int], budget: int) -> list[Part]:
        singles = [Part((head,)) for head in heads]
        if self.options.depth is not None:
            calls = self._calls(singles, self.options.depth)
            return calls if len(calls) <= MOST else self._join(self._repeats(calls), budget)
        if len(singles) <= budget:
            return singles
        parts = self._alike_generations(singles)
        if len(parts) <= budget:
            return parts
        tries = [self._repeats(parts)]
        deepest = max((self.merged.nodes[h].module or "").count(".") + 1 for h in heads)
        for depth in range(deepest, 0, -1):
            if len(tries[-1]) <= budget:
                return tries[-1]
            tries.append(self._repeats(self._calls(parts, depth)))
        best = min(tries, key=len)
        # Joining neighbours says little, so it has to make the picture a good deal smaller.
        return best if len(best) <= 2 * budget else self._join(best, budget)

    def _token(self, part: Part) -> Hashable:
        """Equal for parts that look alike: numbers in module paths do not count, states do."""
        if len(part.heads) == 1:
            node = self.merged.nodes[part.heads[0]]
            return (node.name, node.state, _alike(node.module))
        return (part.why, part.times, tuple(self._token(Part((h,))) for h in part.heads))

    def _alike_generations(self, parts: list[Part]) -> list[Part]:
        """Of three or more generations that follow each other and look alike keep the newest."""
        if not self.generations:
            return parts
        pieces = _split(parts, lambda part: self.merged.nodes[part.heads[0]].built_after)
        tokens = [tuple(map(self._token, piece)) for piece in pieces]
        folded: list[Part] = []
        done = 0
        for run in find_runs(tokens, saving=2):
            kept = run.start + run.period
            folded += [part for piece in pieces[done:kept] for part in piece]
            rest = [
                head for piece in pieces[kept : run.stop] for part in piece for head in part.heads
            ]
            folded.append(
                Part(tuple(rest), "repeat", times=run.times - 1, sample=folded[-1].heads[0])
            )
            done = run.stop
        return folded + [part for piece in pieces[done:] for part in piece]

    def _repeats(self, parts: list[Part]) -> list[Part]:
        """Of a piece that repeats itself keep the newest, unless it is a single box anyway."""
        folded: list[Part] = []
        done = 0
        for run in find_runs([self._token(part) for part in parts]):
            folded += parts[done : run.start]
            kept = run.start if run.period == 1 else run.start + run.period
            sample = parts[run.start].heads[0]
            folded += [
                Part(p.heads, p.why, p.title, p.times, sample) for p in parts[run.start : kept]
            ]
            rest = tuple(head for part in parts[kept : run.stop] for head in part.heads)
            times = run.times if run.period == 1 else run.times - 1
            folded.append(
                Part(rest, "repeat", times=times, sample=None if run.period == 1 else sample)
            )
            done = run.stop
        return folded + parts[done:]

    def _calls(self, parts: list[Part], depth: int) -> list[Part]:
        """One part per call of a module at this depth: neighbours with the same beginning of the module path."""

        def scope(part: Part) -> Hashable:
            module = self.merged.nodes[part.heads[0]].module
            if (
                part.why
                or part.sample is not None
                or module is None
                or module.count(".") + 1 < depth
            ):
                return part.heads
            return ".".join(module.split(".")[:depth])

        calls: list[Part] = []
        for piece in _split(parts, scope):
            title = scope(piece[0])
            if len(piece) == 1 or not isinstance(title, str):
                calls += piece
            else:
                calls.append(Part(tuple(h for part in piece for h in part.heads), "module", title))
        return calls

    def _join(self, parts: list[Part], budget: int) -> list[Part]:
        """The last resort: join neighbours into pieces of about equal size, cutting where few edges cross."""
        pinned = sum(1 for part in parts if self.pinned.intersection(part.heads))
        # Each pinned part can leave one short piece before it.
        size = max(2, -(-(len(parts) - pinned) // max(1, budget - 2 * pinned - 1)))
        slack = size // 3
        crossing = self._crossing(parts)
        joined: list[Part] = []
        piece: list[Part] = []
        for at, part in enumerate(parts):
            if self.pinned.intersection(part.heads):
                joined += [*_joined(piece), part]
                piece = []
                continue
            piece.append(part)
            ahead = crossing[at + 1 : at + 1 + size + slack - len(piece)]
            if len(piece) >= size and (not ahead or crossing[at] <= min(ahead)):
                joined += _joined(piece)
                piece = []
        return joined + _joined(piece)

    def _crossing(self, parts: list[Part]) -> list[int]:
        """How many edges pass over the place behind each part."""
        place = {head: at for at, part in enumerate(parts) for head in part.heads}
        change = [0] * (len(parts) + 1)
        for head, at in place.items():
            for target in self.merged.targets[head]:
                change[at] += 1
                change[place.get(target, at)] -= 1
        total = 0
        return [total := total + step for step in change]

    def around_focus(self, heads: list[int], notes: list[str]) -> list[Part]:
        """Open what the focus names and its neighbours; join all else, stretch by stretch."""
        focus = self.options.focus or ""
        chosen = {head for head in heads if self._matches(head, focus)}
        if not chosen:
            notes.append(f"nothing in this graph is called {focus!r}: the whole graph is shown")
            return self.all(heads)
        near = {n for c in chosen for n in (*self.merged.targets[c], *self.merged.sources[c])}
        shown = chosen | (near if len(chosen) + len(near) <= COMFORTABLE else set())
        parts: list[Part] = []
        for piece in _split(
            [Part((head,)) for head in heads], lambda part: self._side(part.heads[0], shown)
        ):
            inside = self._side(piece[0].heads[0], shown)
            if inside:
                parts += (
                    piece
                    if len(piece) <= COMFORTABLE
                    else self._fold_stretch([p.heads[0] for p in piece], COMFORTABLE)
                )
            else:
                parts += _joined(piece)
        return parts if len(parts) <= MOST else self._join(parts, MOST)

    def _side(self, head: int, shown: set[int]) -> bool:
        return head in shown or head in self.pinned

    def _matches(self, head: int, focus: str) -> bool:
        node = self.merged.nodes[head]
        if focus == "finding":
            return head == self.marks.failing or head in self.marks.highlight
        return (
            focus in (node.name, f"n{head}", node.module, node.variable)
            or bool(node.module and node.module.startswith(focus + "."))
            or any(root.name == focus and root.node == head for root in self.merged.roots)
        )


def _alike(module: str | None) -> str | None:
    return module and re.sub(r"\d+", "#", module)


def _split(parts: Sequence[Part], key: Callable[[Part], Hashable]) -> list[list[Part]]:
    """Cut the parts wherever the key changes."""
    pieces: list[list[Part]] = []
    last: Hashable = object()
    for part in parts:
        now = key(part)
        if not pieces or now != last:
            pieces.append([])
        pieces[-1].append(part)
        last = now
    return pieces


def _joined(parts: Iterable[Part]) -> list[Part]:
    parts = list(parts)
    if len(parts) < 2:
        return parts
    return [Part(tuple(head for part in parts for head in part.heads), "rest")]
