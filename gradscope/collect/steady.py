"""While iterations repeat, lifts the saved-tensor hooks and recognizes each graph by a bare walk that reads what it saved.

A graph that is not just as before, or that could hold anything freed or stale, is left to the full look, and the hooks
come back.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.collect.calls import Call
from gradscope.collect.generations import Generations
from gradscope.collect.ledger import Ledger
from gradscope.collect.marks import Census, Packed, Token, Weight
from gradscope.collect.nodes import Kind, kind_of, stale_by_engine
from gradscope.collect.shapes import Repeat, Shape
from gradscope.program.sites import Place
from gradscope.program.tensors import PLAIN

_sequence_nr = torch._C._autograd._get_sequence_nr
_ALIKE, _ALIKE_WITHOUT_STEPS = (
    8,
    24,
)  # calls, one after the other, that met what had been met before
_MOST_NODES = 50_000  # of one graph
_MOST_KINDS = 5_000
_MOST_INTERVALS = 64  # of one shape
_MOST_KNOWN = 200
_MOST_REMEMBERED = 100_000  # calls
_LONGEST_WAIT = 2_000  # calls

_FUNCTION = ("",)
"""Stands for the saved tensors of a Python Function, which are read in another way."""

_Key = tuple[Place | None, int, tuple[type, ...]]
"""By what a graph is recognized: the place of the call, the bytes of what was read, and the kinds of the nodes."""


class _Past:
    """The calls of recognized graphs, in the order in which they were made: a few numbers of each."""

    def __init__(self) -> None:
        self._calls = array("Q")
        self._steps = array("Q")
        self._roots = array("Q")
        self._ends = array("Q")
        self._shapes: list[Shape] = []

    def add(self, call: Call, repeat: Repeat) -> None:
        """Remember a call that has just ended."""
        shape, root = repeat.shape, call.roots[0]
        if not shape.offsets:
            shape.offsets = {
                root - number: index for index, number in enumerate(repeat.numbers) if number
            }
        for numbers, number in zip(
            self._columns, (call.number, call.steps, root, _sequence_nr()), strict=True
        ):
            numbers.append(number)
        self._shapes.append(shape)
        if len(self._shapes) > _MOST_REMEMBERED:
            del self._shapes[: _MOST_REMEMBERED // 2]
            for column in self._columns:
                del column[: _MOST_REMEMBERED // 2]

    def find(self, sequence_nr: int) -> tuple[Call, Shape, int] | None:
        """The call that ran the node with this number, its shape, and which of its nodes that was."""
        at = bisect_right(self._ends, sequence_nr)
        if at == len(self._ends):
            return None
        shape = self._shapes[at]
        index = shape.offsets.get(self._roots[at] - sequence_nr)
        if index is None:
            return None
        call = Call(self._calls[at], shape.signature[0], keep=False)
        call.open, call.completed = False, True
        call.steps, call.sequence_nr, call.roots = (
            self._steps[at],
            self._ends[at],
            (self._roots[at],),
        )
        call.fields = {**shape.fields, "number": call.number}
        return call, shape, index

    @property
    def shapes(self) -> set[Shape]:
        """The shapes of the last calls."""
        return set(self._shapes[-_MOST_KNOWN:])

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._calls, self._steps, self._roots, self._ends


class Steady:
    """Decides when the hooks of the watch's own thread are lifted, and stands in for them meanwhile."""

    def __init__(self, ledger: Ledger, census: Census, generations: Generations) -> None:
        self.on = False
        self.blocked = False
        self.doubted = False
        """Something seems to grow from call to call: what it is will show only with hooks."""
        self.lift: Callable[[], bool] = lambda: False
        self.lower: Callable[[], None] = lambda: None
        self.room_for: Callable[[int], int] = lambda nodes: _MOST_NODES
        self.on_growth: Callable[[], None] = lambda: None
        """Told when more nodes are alive after a call than after the like of it."""
        self._ledger = ledger
        self._census = census
        self._generations = generations
        self._toggles = array(
            "Q"
        )  # sequence numbers at which the hooks were lifted and put back, in turn
        self._readable: dict[type, tuple[str, ...]] = {}
        self._known: dict[_Key, Shape] = {}
        self._likes: dict[tuple[type, ...], Shape] = {}
        self._past = _Past()
        self._baseline: dict[int, int] = {}
        self._counted = ledger.counts()
        self._alike = 0
        self._awaited: tuple[Shape, int] | None = None
        self._wait_until = self._last_odd = 0

    # looking

    def look(self, roots: Sequence[Node], place: Place | None) -> Repeat | None:
        """Recognize a graph; None unless it was built since the last call, is known, and has no stale tensor."""
        read = self._read(roots)
        if read is None:
            return None
        kinds, numbers, nbytes = read
        shape = self._known.get((place, nbytes, kinds))
        return None if shape is None else Repeat(shape, numbers)

    def learn(
        self, shape: Shape, nodes: Sequence[Node], tokens: Sequence[Token], roots: Sequence[Node]
    ) -> None:
        """Find out whether a bare walk would recognize graphs of this shape; it has to see all that the hooks have seen."""
        shape.recognizable = False
        if len(nodes) > _MOST_NODES:
            return
        readable = {}
        for node, token in zip(nodes, tokens, strict=True):
            kind = kind_of(type(node))
            tensors = _count(node, kind)
            if tensors is None or tensors < len(token.packs):
                return
            readable[type(node)] = (
                _FUNCTION if kind.is_function else tuple("_saved_" + name for name in kind.names)
            )
        if len(self._known) >= _MOST_KNOWN or len(self._readable) >= _MOST_KINDS:
            self._known.clear()
            self._likes.clear()
            self._readable.clear()
        self._readable.update(readable)
        read = self._read(roots)
        if read is not None and len(read[0]) == len(nodes):
            kinds, _, nbytes = read
            shape.recognizable = True
            shape.nodes = sum(not kind_of(kind).is_leaf for kind in kinds)
            self._known[shape.signature[0], nbytes, kinds] = shape
            self._likes[kinds] = shape

    def _read(self, roots: Sequence[Node]) -> tuple[tuple[type, ...], array[int], int] | None:
        """Walk a graph as the full look does: kinds and sequence numbers of its nodes, and the bytes of what they saved.

        None if a node that saves something was built before the last call ended, or if one cannot be read. To read
        what was saved without hooks runs torch's own check of its version, and nobody's code.
        """
        readable, newest = self._readable, self._generations.newest
        seen: set[Node] = set()
        kinds: list[type] = []
        numbers = array("Q")
        nbytes = 0
        most = min(_MOST_NODES, self.room_for(0))
        stack = list(roots)[::-1]
        try:
            while stack:
                node = stack.pop()
                if node in seen:
                    continue
                seen.add(node)
                kind = type(node)
                names = readable.get(kind)
                if names is None or len(kinds) >= most:
                    return None
                kinds.append(kind)
                if not names:
                    numbers.append(
                        0
                    )  # it saves nothing: no matter when it was built and who runs it
                elif (number := node._sequence_nr()) < newest:
                    return None
                else:
                    numbers.append(number)
                if names is _FUNCTION:
                    nbytes += sum(tensor.nbytes for tensor in _saved_by_function(node))
                else:
                    for name in names:
                        value = getattr(node, name)
                        if type(value) in PLAIN:
                            nbytes += value.nbytes
                        elif type(value) is tuple:
                            nbytes += sum(tensor.nbytes for tensor in value if tensor is not None)
                        elif value is not None:
                            return None  # a tensor subclass, whose code is not to run
                following = node.next_functions
                if len(following) == 1:
                    target = following[0][0]
                    if target is not None and target not in seen:
                        stack.append(target)
                else:
                    for target, _ in reversed(following):
                        if target is not None and target not in seen:
                            stack.append(target)
        except (
            RuntimeError,
            TypeError,
        ):  # freed, stale, or not a list of tensors: the full look will tell
            return None
        return tuple(kinds), numbers, nbytes

    # what went by without hooks

    def was_lifted(self, sequence_nr: int) -> bool:
        """True when the node with this number was built while the hooks were lifted."""
        return bool(self._toggles) and bisect_right(self._toggles, sequence_nr) % 2 == 1

    def recall(self, token: Token) -> None:
        """Fill in which call ran a node that was built while the hooks were lifted, and where its likes were made."""
        found = self._past.find(token.sequence_nr)
        if found is None:
            return
        token.call, shape, index = found
        token.place = shape.places[index]
        if shape.graph is not None:
            token.graph, token.index = shape.graph, index
            token.module = _module(shape, index)

    def knows(self, kinds: tuple[type, ...]) -> bool:
        """Whether a graph with nodes of these kinds was seen to be readable without hooks."""
        return kinds in self._likes

    def places_of(self, kinds: tuple[type, ...], place: Place | None) -> tuple[Place | None, ...]:
        """Where the nodes of a known graph with nodes of these kinds were made, which a call at ``place`` has met."""
        shape = self._likes.get(kinds)
        return () if shape is None or place not in (None, shape.signature[0]) else shape.places

    # calls

    def after_hooked(self, call: Call, shape: Shape, built: int, alike: bool) -> None:
        """A call was looked at in full: lift the hooks once enough of them found what had been found before.

        ``alike`` is False for a call after which things may not go on as before, whatever its graph looks like.
        """
        counted = self._ledger.counts()
        if len(shape.intervals) >= _MOST_INTERVALS:
            del shape.intervals[next(iter(shape.intervals))]
        shape.intervals[built] = tuple(
            now - then for now, then in zip(counted, self._counted, strict=True)
        )
        self._counted = counted
        alive = (self._ledger.live_tensors, self._census.alive)
        alike = (
            alike
            and shape.recognizable is True
            and alive[0] <= shape.alive[0]
            and alive[1] <= shape.alive[1]
        )
        shape.alive = alive
        self._alike = self._alike + 1 if alike else 0
        if self._awaited is not None:
            waited_for, nodes = self._awaited
            if nodes in waited_for.intervals or call.number >= self._wait_until:
                self._awaited = None
        enough = (
            self._alike >= (_ALIKE if call.steps else _ALIKE_WITHOUT_STEPS)
            and self._awaited is None
        )
        if enough and not (self.doubted or self.blocked) and self.lift():
            self.on = True
            self._baseline.clear()
            self._toggles.append(_sequence_nr())

    def begin(self, repeat: Repeat, roots: Sequence[Node]) -> None:
        """A graph was recognized: count its nodes as alive for as long as its root lives."""
        metadata: Any = roots[0].metadata  # a property, though its stub says a method
        metadata[Weight.KEY] = Weight(self._census, repeat.shape.nodes)

    def after_repeat(self, call: Call, repeat: Repeat, built: int) -> None:
        """A recognized graph was run: count what its likes have counted, and remember which nodes it ran."""
        shape = repeat.shape
        counts = shape.intervals.get(built) or next(reversed(shape.intervals.values()))
        self._ledger.add(counts)
        self._counted = self._ledger.counts()
        self._past.add(call, repeat)
        alive = self._census.alive
        if alive > self._baseline.setdefault(shape.number, alive):
            self.leave()
            self.on_growth()
        elif not call.completed:
            self.leave()
        elif built not in shape.intervals:
            self._odd(call, shape, built)

    def _odd(self, call: Call, shape: Shape, built: int) -> None:
        """More or fewer nodes were built since the last call than ever before: watch in full until that comes again."""
        self._awaited = (shape, built)
        self._wait_until = call.number + min(2 * (call.number - self._last_odd), _LONGEST_WAIT)
        self._last_odd = call.number
        self.leave()

    def block(self) -> None:
        """Something runs that a bare walk cannot see, as work in another thread: never lift the hooks again.

        They come back at the next backward call, as only their own thread can put them back.
        """
        self.blocked = True

    def leave(self) -> None:
        """Put the hooks back."""
        if not self.on:
            return
        self.on = False
        self._alike = 0
        self.lower()
        self._toggles.append(_sequence_nr())
        for shape in self._past.shapes:
            for place in shape.places:
                if place is not None:
                    place.last_sequence_nr = (
                        _sequence_nr()
                    )  # it ran in every iteration, so it has by now


def _module(shape: Shape, index: int) -> tuple[str, str] | None:
    node = (
        shape.graph.nodes[index]
        if shape.graph is not None and index < len(shape.graph.nodes)
        else None
    )
    return None if node is None or node.module is None else (node.module, node.module_class or "")


def _saved(node: Node, kind: Kind) -> Iterator[torch.Tensor]:
    """What a node saved, without unpacking anything.

    Raises TypeError for what the program's own hooks have packed and for tensor subclasses, whose code must not run, and
    RuntimeError for a list that was freed.
    """
    for name in kind.names:
        value = getattr(node, "_raw_saved_" + name)
        for saved in value if isinstance(value, tuple | list) else (value,):
            data: Any = None if saved is None else saved.data
            if isinstance(data, Packed):
                data = data.tensor
            elif data is None:
                continue
            elif saved.unpack_hook is not None:
                raise TypeError
            if type(data) not in PLAIN:
                raise TypeError
            yield data


def _count(node: Node, kind: Kind) -> int | None:
    """How many saved tensors of a node can be read; None where that cannot be known."""
    if kind.is_slices or kind.is_compiled or type(node).__name__ == "CppFunction":
        return None
    try:
        return sum(1 for _ in _saved(node, kind))
    except (RuntimeError, TypeError):
        return None


def _saved_by_function(node: Node) -> list[torch.Tensor]:
    """What a Python Function saved; RuntimeError if any of it is stale."""
    kind = kind_of(type(node))
    if stale_by_engine(node, kind):
        raise RuntimeError
    return list(_saved(node, kind))
