"""Backward calls: what they ask of the engine, the shapes of their graphs, and the patterns of
their calls.

A ``Call`` has what later calls need to know of it. Its graph has a ``Shape``: kinds of nodes, their
lines, and what the call asks of the engine. Calls of one kind at one line have a ``CallPattern``:
what such a call usually saves, frees and leaves behind.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import add, attrgetter
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

from torch.autograd.graph import Node

from gradscope.collect.walk import edge_of, may_have_gradient, root_node
from gradscope.hooks import carry
from gradscope.model import BackwardCall, Finding, Graph
from gradscope.program.sites import Place
from gradscope.program.tensors import leaves_of
from gradscope.torch_private import CALL

# Graph structures that are remembered; the oldest is forgotten first. A loop whose graphs are never
# alike adds one with each inspected call. A forgotten one only counts as new when it comes again.
_MOST = 1_000
# Nodes in all remembered signatures, each with a kind and a place of 8 bytes: 16 MB.
_MOST_NODES = 1_000_000
# Nodes in all snapshots that are kept for the next call of the same shape: each is a record of a
# few hundred bytes. A forgotten one is taken again when its shape comes.
_MOST_SNAPSHOT_NODES = 200_000


class Signature(NamedTuple):
    """What graphs of one shape have in common.

    That is the call's line, what the call asks of the engine, the bytes saved and the edges that
    were not followed; and of the nodes, in depth-first order, their types, the line where each was
    made, which were freed, and which will run.
    """

    place: Place | None = None
    asked: int = 0
    nbytes: int = 0
    left: int = 0
    kinds: tuple[type, ...] = ()
    places: tuple[Place | None, ...] = ()
    freed: tuple[int, ...] = ()
    runs: tuple[bool, ...] | None = None


@dataclass(eq=False, slots=True)
class Shape:
    """The graphs with one signature; ``number`` is a short key for the signature."""

    number: int
    signature: Signature
    graph: Graph | None = None
    """The snapshot of one of them."""
    returned: int | None = None
    """Bytes whose memory came back when one of them was freed."""
    record: BackwardCall | None = None
    """The record of the last call that met one."""
    elsewhere: dict[int, int] = field(default_factory=dict)
    """Which nodes threads of the engine have built: the upper bits of their numbers."""


NO_SHAPE = Shape(0, Signature())


class Shapes:
    """All known shapes; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._shapes: dict[Signature, Shape] = {}
        self._met = 0
        self._nodes = 0
        self._snapshot_nodes = 0

    def meet(self, signature: Signature) -> Shape:
        """Return the shape with this signature, a new one if there is none."""
        shape = self._shapes.get(signature)
        if shape is None:
            self._met += 1
            self._nodes += len(signature.kinds)
            while self._shapes and (len(self._shapes) >= _MOST or self._nodes > _MOST_NODES):
                oldest = next(iter(self._shapes))
                self._nodes -= len(oldest.kinds)
                del self._shapes[oldest]
            shape = self._shapes[signature] = Shape(self._met, signature)
        return shape

    def keep_snapshot(self, shape: Shape, graph: Graph) -> None:
        """Remember a snapshot, and forget all others once there are too many nodes in them."""
        self._snapshot_nodes += len(graph.nodes)
        if self._snapshot_nodes > _MOST_SNAPSHOT_NODES:
            for other in self._shapes.values():
                other.graph = None
            self._snapshot_nodes = len(graph.nodes)
        shape.graph = graph


# The time that one node takes, as ``Generations`` counts it. The lower bits have twice the number
# of a call, which leaves room for 134 million calls.
NODE = 1 << 28


def time_at(node: int, call: int) -> int:
    """Return the time at which the next node had number ``node``, and the newest call ``call``."""
    return node * NODE + 2 * call


COUNTS = (
    *("saved_tensors", "saved_bytes", "freed_tensors", "freed_bytes", "returned_bytes"),
    *("dropped_tensors", "dropped_bytes"),
)
"""The totals of a ledger."""

# Sums of counts for calls of one pattern, one sum for each number of nodes built beside the graphs.
# If that number is never the same twice (an evaluation of random length), the nearest sum is used.
_MOST_ACCOUNTS = 64
# Calls of one pattern, or tensors in them, for which returned memory is measured tensor by tensor;
# later calls are taken to return the same share. One call of a large graph has enough tensors.
_MEASURED, _MUCH_MEASURED = 4, 1_000

PatternKey = tuple[Place | None, int, bool]
"""The call's place, what it asks of the engine, and whether it runs within another."""


Reads = tuple[tuple[str, str, str, int | None], ...]
"""What to read of a node, as ``gradscope.collect.nodes.Kind`` has it."""


class Account:
    """How many calls there were, what their graphs saved, and what the ledger counted meanwhile."""

    def __init__(self) -> None:
        self.calls = self.tensors = self.nbytes = 0
        self.counts: Sequence[int] = (0,) * len(COUNTS)

    def add(self, size: tuple[int, int], counts: Sequence[int] = (), *, calls: int = 1) -> None:
        """Add ``calls`` calls, whose graphs saved ``size`` tensors and bytes together."""
        self.calls += calls
        self.tensors += size[0]
        self.nbytes += size[1]
        if counts:
            self.counts = tuple(map(add, self.counts, counts))

    def of_as_many(self, other: Account) -> Iterator[int]:
        """Estimate the counts for the ``other`` calls, in proportion to their tensors and bytes.

        What was saved beside their graphs, such as by an evaluation, is estimated per call.
        """
        calls = other.calls / self.calls
        for name, counted in zip(COUNTS, self.counts, strict=True):
            size = attrgetter("nbytes" if "bytes" in name else "tensors")
            more = size(other) / size(self) if size(self) else calls
            beside = max(0, counted - size(self)) if "saved" in name else 0
            yield round((counted - beside) * more + beside * calls)


class Accounts(dict[int, Account]):
    """The accounts of calls of one pattern, by how many nodes were built beside their graphs: by an
    evaluation, or for a different loss.
    """

    def of(self, extra: int) -> Account:
        """Return the account for ``extra`` nodes; once there are enough accounts, the nearest."""
        if extra not in self and len(self) < _MOST_ACCOUNTS:
            self[extra] = Account()
        return self.get(extra) or self.nearest(extra)

    def nearest(self, extra: int) -> Account:
        """Return the account for the number of nodes that is nearest to ``extra``."""
        return self[min(self, key=lambda known: abs(known - extra))]


_UNKNOWN_YET = -1  # instead of the number of nodes built beside a graph, which is never negative


class CallPattern:
    """What is usual for calls of one kind at one line: the kinds of nodes in their graphs, and what
    such a call saves, frees and leaves behind.
    """

    def __init__(self) -> None:
        self.reads: dict[type, Reads] = {}
        """What to read of each kind of node that was met."""
        self.shape: Shape | None = None
        """The shape of the last graph that was inspected in full."""
        self.ended = 0
        """The sequence number at which the last call ended."""
        self.old = 0
        """The most nodes of one graph that were older than the graphs before it."""
        self.extra = _UNKNOWN_YET
        """The most nodes that were built between two calls beside their graphs."""
        self.alive = (0, 0)
        """The most saved tensors, and the most nodes of other graphs, that lived after a call."""
        self.pace = 0
        """How many more nodes each call leaves alive because of leaks that were reported."""
        self.scale: tuple[float, float] | None = None
        """Tensors and bytes that the hooks counted, for each that the fast walk reads."""
        # Of watched calls, and of those whose saved tensors the hooks did not see.
        self._watched, self.unseen = Accounts(), Accounts()
        self._read = (0, 0, 0)  # nodes, saved tensors and bytes of the graphs that were read
        self._measured, self._returned = Account(), 0  # what was freed, and bytes that came back

    def begin_anew(self) -> None:
        """Forget how the fast walk recognizes such a call; keep all that was counted."""
        self.shape, self.extra = None, _UNKNOWN_YET

    def bounds(self, tensors: int, nodes: int, *, leaks: bool) -> bool:
        """Return whether no more saved tensors and nodes of other graphs are alive than after
        earlier calls.

        If a leak was reported (``leaks``), nodes may become more at the same pace. Tensors may not,
        because what they hold is known exactly only while the hooks see it.
        """
        most_tensors, most_nodes = self.alive
        before, more = self.pace, max(0, nodes - most_nodes)
        self.alive = (max(tensors, most_tensors), most_nodes + more)
        if leaks:
            self.pace = max(before, more)
        return tensors <= most_tensors and more <= before

    def go_on(self) -> None:
        """Take it that a guarded call has left as many nodes as the watched calls did."""
        self.alive = (self.alive[0], self.alive[1] + self.pace)

    def scaled(self, tensors: int, nbytes: int) -> tuple[int, int]:
        """Return what the hooks would have counted, from what the fast walk has read."""
        of_tensors, of_bytes = self.scale or (1.0, 1.0)
        return round(tensors * of_tensors), round(nbytes * of_bytes)

    def read(self, nodes: int, size: tuple[int, int]) -> None:
        """Note what a graph of so many nodes saved."""
        self._read = tuple(map(add, self._read, (nodes, *size)))

    def size_of(self, nodes: int) -> tuple[int, int]:
        """Estimate what a graph of so many nodes saved: as much a node as those that were read."""
        read, tensors, nbytes = self._read
        return round(nodes * tensors / read), round(nodes * nbytes / read)

    def watch(self, call: Call, counts: Sequence[int]) -> None:
        """Note what the ledger counted from the end of the call before to the end of this watched
        call.
        """
        # What was built before the first call is not built between two.
        self.extra = 0 if self.extra == _UNKNOWN_YET else max(self.extra, call.extra)
        if not call.unhooked[0]:
            saved = call.record.saved_tensors, call.record.saved_bytes
            self._watched.of(call.extra).add(saved, counts)

    @property
    def reckoned(self) -> Iterator[Iterator[int]]:
        """Estimates what the ledger would have counted with the guarded calls."""
        for extra, account in self.unseen.items():
            if self._watched:
                yield self._watched.nearest(extra).of_as_many(account)

    def returned_by(self, shape: Shape, freed: int) -> int:
        """Return how much memory comes back when a graph of this shape is freed, in bytes."""
        like = freed * self._returned // (self._measured.nbytes or 1)
        return min(like if shape.returned is None else shape.returned, freed)

    @property
    def is_measured(self) -> bool:
        """Whether enough calls were measured to know what share of the memory comes back."""
        measured = self._measured
        return measured.calls >= _MEASURED or measured.tensors >= _MUCH_MEASURED

    def measure(self, returned: int, freed: int, tensors: int) -> None:
        """Note how many of the ``freed`` bytes, of that many ``tensors``, came back."""
        self._measured.add((tensors, freed))
        self._returned += returned


# Bits of ``EngineCall.kind``: the call runs only what leads to some inputs; it adds to ``.grad``.
INPUTS, ACCUMULATES = 4, 8
PLAIN_BACKWARD = ACCUMULATES
"""The kind of a call of ``backward()`` without arguments."""


class EngineCall(NamedTuple):
    """What a backward call asks of the engine: the arguments that torch gives it.

    ``accumulates`` is False for ``autograd.grad``. ``allows_unused``: an input that no path reaches
    is not an error.
    """

    outputs: Sequence[Any]
    keep_graph: bool
    create_graph: bool
    inputs: Sequence[Any]
    accumulates: bool
    allows_unused: bool = True

    @classmethod
    def of(
        cls,
        t_outputs: Sequence[Any],
        grad_tensors: Sequence[Any] = (),
        keep_graph: bool = False,
        create_graph: bool = False,
        inputs: Sequence[Any] = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = True,
    ) -> EngineCall:
        """Read the arguments of ``_engine_run_backward`` (torch/autograd/graph.py)."""
        asked = t_outputs, bool(keep_graph), bool(create_graph), inputs or ()
        return cls(*asked, bool(accumulate_grad), bool(allow_unreachable))

    @property
    def roots(self) -> list[Node]:
        """The nodes that the engine starts from."""
        return [node for node in map(root_node, self.outputs) if node is not None]

    @property
    def bare(self) -> list[int]:
        """Which of the outputs have no graph: the engine refuses to start from them."""
        return [i for i, each in enumerate(self.outputs) if not may_have_gradient(each)]

    @property
    def constant(self) -> list[int]:
        """Which of the inputs do not require grad: the engine refuses to differentiate by them."""
        return [i for i, each in enumerate(self.inputs) if not may_have_gradient(each)]

    def unused(self, nodes: Iterable[Node]) -> list[int]:
        """Return which of the inputs no edge of a graph with these ``nodes`` leads to; none if the
        engine allows that.
        """
        if self.allows_unused or not self.inputs:
            return []
        nodes = tuple(nodes)
        leaves = {id(each) for each in (*leaves_of(nodes), *self.outputs)}
        wanted = [edge_of(each) for each in self.inputs]
        edges: set[Any] = {edge_of(each) for each in self.outputs}
        if any(wanted):
            edges.update(edge for node in nodes for edge in node.next_functions)
        pairs = zip(wanted, self.inputs, strict=True)
        reached = [id(it) in leaves if edge is None else edge in edges for edge, it in pairs]
        return [i for i, is_reached in enumerate(reached) if not is_reached]

    @property
    def kind(self) -> int:
        """A number that differs for each combination of options."""
        kept = self.keep_graph + 2 * self.create_graph
        return kept + INPUTS * bool(self.inputs) + ACCUMULATES * self.accumulates

    @property
    def word(self) -> str:
        """The name of such a call in the recording."""
        return "backward" if self.accumulates else "grad"


NO_PATTERN = CallPattern()


@dataclass(eq=False, repr=False, slots=True)
class Call:
    """A backward call, numbered from 1.

    Torch carries the call into all threads of the engine that run it, so it is the ``parent`` of
    each call that one of them makes. ``frame``, while the call is open, is where the stacks of
    these threads continue. ``outermost`` is the first call on the same stack, if that is a
    different one; ``depth`` counts the calls within each other, this one included. Only calls of
    the watch's own thread, and calls within those, are ``own``.

    A call is ``plain`` if it is ``own`` and nothing is wrong with its graph. It is ``known`` if its
    graph also has nothing that is new to calls of its ``pattern``. A call within a plain one may be
    plain too; ``within`` counts those once they have ended.

    ``built`` counts the nodes that were built since the call before, and ``fresh`` those of them
    that are in the call's graph. The call ``builds`` if its thread built nodes while it ran.
    ``began`` and ``time`` say when it began and ended, as ``Generations`` counts time.

    An ``exact`` call finds for every freed tensor whether its memory came back; calls on a known
    shape do not. ``unhooked`` are the tensors and bytes that the graph saved while the hooks were
    suspended. ``met`` is a call that ran on the same nodes at the same time, ``beside`` one that
    ran at the same time and is not around this one, and ``again`` the record of an earlier call
    that has run some of the same nodes. ``woken``: an alarm asks for a detailed inspection.
    ``word`` is the call's name in the recording.

    A call is ``guarded`` if its graph was recognized while the hooks are suspended. It has the
    ``numbers`` of the nodes in depth-first order, 0 for leaves. Its graph saved about ``size``
    tensors and bytes. If it is ``of_new_shape``, then ``shape`` is the shape of a graph like its
    own.
    """

    number: int
    place: Place | None
    keep: bool
    open: bool = True
    completed: bool = False
    exact: bool = True
    plain: bool = False
    known: bool = False
    woken: bool = False
    own: bool = True
    depth: int = 1
    parent: Call | None = None
    outermost: Call | None = None
    frame: FrameType | None = None
    met: Call | None = None
    beside: Call | None = None
    again: BackwardCall | None = None
    roots: tuple[int, ...] = ()
    sequence_nr: int = 0
    began: int = 0
    time: int = 0
    builds: bool = False
    steps: int = 0
    within: int = 0
    built: int = 0
    fresh: int = 0
    freed_tensors: int = 0
    freed_bytes: int = 0
    returned_bytes: int = 0
    unhooked: tuple[int, int] = (0, 0)
    shape: Shape = NO_SHAPE
    pattern: CallPattern = NO_PATTERN
    guarded: bool = False
    of_new_shape: bool = False
    numbers: Sequence[int] = ()
    size: tuple[int, int] = (0, 0)
    findings: Sequence[Finding] = ()
    started: float = 0.0
    ended: float = 0.0
    word: str = "backward"
    _record: BackwardCall | None = None

    def begin(self, parent: Call | None, frame: FrameType) -> None:
        """Have torch carry the call into the threads of the engine that run it."""
        self.parent, self.frame = parent, frame
        if parent is not None:
            self.depth = parent.depth + 1
            below = frame.f_back
            while below is not None and below is not parent.frame:
                below = below.f_back
            if below is not None:
                self.outermost = parent.outermost or parent
        carry(CALL, self)

    def end(self, *, completed: bool) -> None:
        """End the call; this thread then runs the call around it again, if there is one."""
        self.open, self.completed, self.frame = False, completed, None
        if self.parent is not None:
            self.parent.within += self.within
        carry(CALL, self.parent)

    @property
    def extra(self) -> int:
        """How many nodes were built since the call before that are not in this call's graph."""
        return self.built - self.fresh

    def is_in(self, other: Call) -> bool:
        """Return whether this is another call, or within it."""
        call: Call | None = self
        while call is not None and call is not other:
            call = call.parent
        return call is not None

    @property
    def record(self) -> BackwardCall:
        """The call's row in the recording. For a guarded call it is made when it is asked for: the
        row of a call like it, with its own times.
        """
        if self._record is not None:
            return self._record
        if not self.guarded:
            return BackwardCall(self.number, "backward")
        like = self.shape.record
        assert like is not None
        record = replace(
            like,
            number=self.number,
            last_number=self.number,
            parent=self.parent.number if self.parent else None,
            graph=None if self.of_new_shape else like.graph,
            started=self.started,
            ended=self.ended,
            exception=None,
        )
        if not self.open:
            self._record = record
        return record

    @record.setter
    def record(self, record: BackwardCall) -> None:
        self._record = record


@dataclass(slots=True)
class CallSite:
    """A line whose calls may be counted.

    ``reads`` counts the calls that were read there since the hooks were suspended. ``left`` more
    calls may be counted before the next one is read, but none from call number ``alarm`` on.
    ``asked`` is what they ask of the engine (``EngineCall.kind``), ``nodes`` the size of the last
    graph that was read, and ``shape`` its shape if that is known.
    If some of it was built before the last step of an optimizer, ``steps`` were made from the call
    before to that one; ``stepped`` before the last call in all.
    """

    place: Place
    pattern: CallPattern
    asked: int = PLAIN_BACKWARD
    reads: int = 0
    left: int = 0
    shape: Shape | None = None
    nodes: int = 0
    alarm: int = 0
    steps: int | None = None
    stepped: int = 0


@dataclass(eq=False)
class StepCount:
    """How many steps an optimizer has made; the next ``rests`` ones need only be counted."""

    optimizer: weakref.ref[Any]
    steps: int = 0
    rests: int = 0


class Counted(NamedTuple):
    """A guarded call of which only the kinds and numbers of its nodes were read.

    The fields mean the same as those of ``Call``; ``steps`` counts the optimizer steps before it.
    The number of the next node was ``start`` when it began, and ``sequence_nr`` when it ended,
    ``ended`` seconds after the watch had begun.
    """

    number: int
    steps: int
    place: Place
    pattern: CallPattern
    shape: Shape
    of_new_shape: bool
    keep: bool
    roots: tuple[int, ...]
    numbers: Sequence[int]
    fresh: int
    extra: int
    start: int
    sequence_nr: int = 0
    ended: float = 0.0

    @property
    def size(self) -> tuple[int, int]:
        """About how many tensors and bytes the graph saved."""
        return self.pattern.size_of(len(self.numbers))

    @property
    def parent(self) -> None:
        """It runs within no other call."""

    @property
    def began(self) -> int:
        """When it began."""
        return time_at(self.start, self.number - 1)

    @property
    def time(self) -> int:
        """When it ended."""
        return time_at(self.sequence_nr, self.number)

    @property
    def record(self) -> BackwardCall:
        """What the recording gets."""
        return self.call().record

    def call(self) -> Call:
        """Return this call as a ``Call``, as those are that were read."""
        known = {name: getattr(self, name) for name in _OF_COUNTED}
        call = Call(open=False, completed=True, exact=False, plain=True, **known)
        call.built, call.started, call.guarded = self.fresh + self.extra, self.ended, True
        return call


_OF_COUNTED = (
    *("number", "place", "steps", "pattern", "shape", "of_new_shape", "keep", "roots", "numbers"),
    *("fresh", "size", "began", "time", "sequence_nr", "ended"),
)

Guarded: TypeAlias = Call | Counted
"""A guarded call that has ended."""


BEFORE_WATCH = Call(0, None, keep=False, open=False)
"""Stands for a backward call that ran before the watch began, or was not inspected."""
