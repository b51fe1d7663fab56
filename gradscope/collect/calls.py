"""Backward calls: what they ask of the engine, the shapes of their graphs, and their habits.

A call has what later calls need to know of it.
"""

from __future__ import annotations

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
from gradscope.program.undisturbed import Allowance
from gradscope.torch_private import CALL

# Graph structures that are remembered; the oldest is forgotten first. A loop whose graphs are
# never alike adds one with each inspected call; a forgotten one only counts as new when it comes
# again.
_MOST = 1_000
# Nodes in all remembered signatures, each with a kind and a place of 8 bytes: 16 MB.
_MOST_NODES = 1_000_000
# Nodes in all snapshots that are kept for the next call of the same shape: each is a record of a
# few hundred bytes. A forgotten one is taken again when its shape comes.
_MOST_PICTURED_NODES = 200_000


class Signature(NamedTuple):
    """What graphs of one shape have in common: the call's place and what it asks of the engine,
    bytes saved, edges left; of the nodes in depth-first order the types, where each was made, which
    were freed, and which will run.
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
    """Graphs with one signature. ``number`` stands for the signature where a short key is
    wanted.
    """

    number: int
    signature: Signature
    graph: Graph | None = None
    """The picture of one of them."""
    returned: int | None = None
    """Bytes whose memory came back when one of them was freed."""
    record: BackwardCall | None = None
    """The record of the last call that met one."""
    recognizable: bool | None = None
    """Whether a bare walk tells that a graph has this shape; None until that was tried."""
    elsewhere: dict[int, int] = field(default_factory=dict)
    """Which nodes threads of the engine have built: the upper bits of their numbers."""


NO_SHAPE = Shape(0, Signature())


class Shapes:
    """All known shapes; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._shapes: dict[Signature, Shape] = {}
        self._met = 0
        self._nodes = 0
        self._pictured_nodes = 0

    def meet(self, signature: Signature) -> Shape:
        """The shape with this signature, made new if there is none."""
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

    def keep_picture(self, shape: Shape, graph: Graph) -> None:
        """Remember a picture, and forget all others once there are too many nodes in them."""
        self._pictured_nodes += len(graph.nodes)
        if self._pictured_nodes > _MOST_PICTURED_NODES:
            for other in self._shapes.values():
                other.graph = None
            self._pictured_nodes = len(graph.nodes)
        shape.graph = graph


# What one node is of time: in its lower bits is twice the number of a call, of 134 million.
NODE = 1 << 28


def time_at(node: int, call: int) -> int:
    """Return the time when this was the number of the next node, and of the newest call."""
    return node * NODE + 2 * call


COUNTS = (
    *("saved_tensors", "saved_bytes", "freed_tensors", "freed_bytes", "returned_bytes"),
    *("dropped_tensors", "dropped_bytes"),
)
"""What a ledger counts in all."""

# Sums of counts, one for each number of nodes built beside the graphs. If that number is never
# the same twice (an evaluation of random length), the nearest sum is used.
_MOST_ACCOUNTS = 64
# Calls of one habit, or tensors in them, for which returned memory is measured tensor by tensor;
# later calls are taken to return the same share. One call of a large graph has enough tensors.
_MEASURED, _MUCH_MEASURED = 4, 1_000

HabitKey = tuple[Place | None, int, bool]
"""The call's place, what it asks of the engine, and whether it runs within another."""


Reads = tuple[tuple[str, str, str, int | None], ...]
"""What to read of a node, as ``gradscope.collect.nodes.Kind`` has it."""


class Account:
    """How many calls there were, what their graphs saved, and what the ledger has counted."""

    def __init__(self) -> None:
        self.calls = self.tensors = self.nbytes = 0
        self.counts: Sequence[int] = (0,) * len(COUNTS)

    def add(self, size: tuple[int, int], counts: Sequence[int] = (), *, calls: int = 1) -> None:
        """Add a number of calls, whose graphs saved that much together."""
        self.calls += calls
        self.tensors += size[0]
        self.nbytes += size[1]
        if counts:
            self.counts = tuple(map(add, self.counts, counts))

    def of_as_many(self, other: Account) -> Iterator[int]:
        """Estimate the counts for the ``other`` calls, in proportion to their tensors and bytes.
        What graphs saved that no call ran through has nothing to do with their size.
        """
        calls = other.calls / self.calls
        for name, counted in zip(COUNTS, self.counts, strict=True):
            size = attrgetter("nbytes" if "bytes" in name else "tensors")
            more = size(other) / size(self) if size(self) else calls
            beside = max(0, counted - size(self)) if "saved" in name else 0
            yield round((counted - beside) * more + beside * calls)


class Accounts(dict[int, Account]):
    """Of calls by how many nodes had been built that are not in their graphs: as by an evaluation,
    or of another loss.
    """

    def of(self, extra: int) -> Account:
        """Return the one for so many, or about so many where there are enough."""
        if extra not in self and len(self) < _MOST_ACCOUNTS:
            self[extra] = Account()
        return self.get(extra) or self.nearest(extra)

    def nearest(self, extra: int) -> Account:
        """Return the one for about so many."""
        return self[min(self, key=lambda known: abs(known - extra))]


_UNKNOWN_YET = -1  # of nodes built beside a graph: no number of them


class Habit:
    """The pattern of calls of one kind at one place: the kinds of nodes in their graphs, and what
    such a call counts.
    """

    def __init__(self) -> None:
        self.reads: dict[type, Reads] = {}
        """What to read of each kind of node that was met."""
        self.shape: Shape | None = None
        """The shape of the last graph that was looked at in full."""
        self.ended = 0
        """The sequence number at which the last call ended."""
        self.old = 0
        """How many nodes of a graph at the most were older than the graphs before it."""
        self.extra = _UNKNOWN_YET
        """How many nodes at the most were built between two calls that their graphs have not."""
        self.alive = (0, 0)
        """How many saved tensors and nodes of other graphs lived at the most after a call."""
        self.pace = 0
        """How many more nodes each call leaves by leaks that were told."""
        self.scale: tuple[float, float] | None = None
        """Tensors and bytes that the hooks counted, of each that a bare walk reads."""
        self._watched, self._guarded = Accounts(), Accounts()
        self._measured = self._measured_tensors = 0
        self._returned = (0, 0)  # bytes whose memory came back, and bytes freed

    def begin_anew(self) -> None:
        """Forget by what a bare walk recognizes such a call, and nothing of what was counted."""
        self.shape, self.extra = None, _UNKNOWN_YET

    def bounds(self, tensors: int, nodes: int, *, leaks: bool) -> bool:
        """Return whether no more saved tensors and other graphs' nodes are alive than after earlier
        calls; where it ``leaks`` and was told, nodes may become more at the same pace, and tensors
        may not: what they hold is told exactly only while the hooks see it.
        """
        most_tensors, most_nodes = self.alive
        before, more = self.pace, max(0, nodes - most_nodes)
        self.alive = (max(tensors, most_tensors), most_nodes + more)
        if leaks:
            self.pace = max(before, more)
        return tensors <= most_tensors and more <= before

    def go_on(self) -> None:
        """Take it that a guarded call has left as much as those that were watched."""
        self.alive = (self.alive[0], self.alive[1] + self.pace)

    def scaled(self, tensors: int, nbytes: int) -> tuple[int, int]:
        """Return what the hooks would have counted of what a bare walk has read."""
        of_tensors, of_bytes = self.scale or (1.0, 1.0)
        return round(tensors * of_tensors), round(nbytes * of_bytes)

    def watch(self, call: Call, counts: Sequence[int]) -> None:
        """Note what the ledger has counted from one call to the end of the next, which was
        watched.
        """
        # What was built before the first call is not built between two.
        self.extra = 0 if self.extra == _UNKNOWN_YET else max(self.extra, call.extra)
        if not call.unhooked[0]:
            saved = call.record.saved_tensors, call.record.saved_bytes
            self._watched.of(call.extra).add(saved, counts)

    def guard(self, extra: int, size: tuple[int, int], calls: int = 1) -> None:
        """Note calls of which the hooks did not see all, and what they did not see together."""
        self._guarded.of(extra).add(size, calls=calls)

    @property
    def reckoned(self) -> Iterator[Iterator[int]]:
        """What the ledger would have counted with the guarded calls, as with those watched."""
        for extra, account in self._guarded.items():
            if self._watched:
                yield self._watched.nearest(extra).of_as_many(account)

    def returned_by(self, shape: Shape, freed: int) -> int:
        """Return how much memory comes back where a graph of this shape is freed."""
        back, of = self._returned
        return min(freed * back // (of or 1) if shape.returned is None else shape.returned, freed)

    @property
    def is_measured(self) -> bool:
        """Whether enough is known of what memory comes back."""
        return self._measured >= _MEASURED or self._measured_tensors >= _MUCH_MEASURED

    def measure(self, returned: int, freed: int, tensors: int) -> None:
        """Note how many bytes came back of those that a call has freed, with so many tensors."""
        self._measured += 1
        self._measured_tensors += tensors
        self._returned = (self._returned[0] + returned, self._returned[1] + freed)


# In ``EngineCall.kind``, bits: the call runs only what leads to some inputs, or adds to ``.grad``.
INPUTS, ACCUMULATES = 4, 8
PLAIN_BACKWARD = ACCUMULATES
"""The kind of a call of ``backward()`` without arguments."""


class EngineCall(NamedTuple):
    """What a backward call asks of the engine. ``accumulates`` is False for ``autograd.grad``;
    ``allows_unused``: an input that nothing reaches is not an error.
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
        """The nodes that it starts from."""
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
        """Return which of the inputs no edge of the graph with these nodes leads to, where that is
        an error.
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
        """A number that is another for each way of asking."""
        kept = self.keep_graph + 2 * self.create_graph
        return kept + INPUTS * bool(self.inputs) + ACCUMULATES * self.accumulates

    @property
    def word(self) -> str:
        """The word for it in the record of the call."""
        return "backward" if self.accumulates else "grad"


NO_HABIT = Habit()


@dataclass(eq=False, repr=False, slots=True)
class Call:
    """A backward call, numbered from 1.

    All threads that the engine runs it in have it in common, as torch carries it into them: it is
    the ``parent`` of a call that any of them makes, and ``frame``, as long as it is open, is where
    their stacks go on; ``outermost`` is the first call on its own stack, if another is, ``depth``
    how many calls are within each other with it. ``own`` is told of the calls of the watch's own
    thread, and of those within them.

    A call is ``plain`` when it is ``own`` with nothing wrong with its graph, ``known`` when nothing
    in that is new to calls of its ``habit``; a call within a plain one may be plain too, and
    ``within`` counts those once they have ended. ``built`` counts the nodes that were built since
    the call before, ``fresh`` those of them that are in its graph; it ``builds`` if its thread has
    built some meanwhile. It ``began`` at a time that ``Generations`` tells, and ended at ``time``.
    ``exact`` calls ask of every freed tensor whether its memory returned; calls on a known shape do
    not. ``unhooked`` counts the tensors and bytes that the graph saved while the hooks were lifted;
    ``met`` is another call that ran on the same nodes meanwhile, and ``beside`` one that is not
    around it; ``again`` is the record of an earlier one that has run some of them.
    ``woken``: an alarm asks for a close look. ``word`` is its kind in the recording.

    A call on a graph that was recognized while the hooks are lifted is ``guarded``: ``numbers`` are
    those of its nodes in depth-first order, 0 for leaves; the graph saved about ``size`` tensors
    and bytes, and if it is ``of_new_shape``, ``shape`` is that of a graph like it.
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
    habit: Habit = NO_HABIT
    guarded: bool = False
    of_new_shape: bool = False
    numbers: Sequence[int] = ()
    size: tuple[int, int] = (0, 0)
    findings: Sequence[Finding] = ()
    started: float = 0.0
    ended: float = 0.0
    live_bytes: int = 0
    peak_bytes: int = 0
    nodes_built: int = 0
    nodes_destroyed: int = 0
    allowance: Allowance | None = None
    word: str = "backward"
    _record: BackwardCall | None = None

    def begin(self, parent: Call | None, frame: FrameType) -> None:
        """Have torch carry the call into the threads that run it."""
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
        """Leave this thread to the call around."""
        self.open, self.completed, self.frame = False, completed, None
        if self.parent is not None:
            self.parent.within += self.within
        carry(CALL, self.parent)
        if self.allowance is not None:
            self.allowance.end()

    @property
    def extra(self) -> int:
        """How many nodes were built since the call before and are not in its graph."""
        return self.built - self.fresh

    def is_in(self, other: Call) -> bool:
        """Return whether this is another call, or within it."""
        call: Call | None = self
        while call is not None and call is not other:
            call = call.parent
        return call is not None

    @property
    def record(self) -> BackwardCall:
        """What the recording gets; that of a guarded call is made when it is asked for."""
        if self._record is not None:
            return self._record
        if not self.guarded:
            return BackwardCall(self.number, "backward")
        record = record_of(self)
        if not self.open:
            self._record = record
        return record

    @record.setter
    def record(self, record: BackwardCall) -> None:
        self._record = record


@dataclass(slots=True)
class CallSite:
    """A line at which ``reads`` calls were read since the hooks were lifted; ``left`` more may be
    counted before the next is read, and none from number ``alarm`` on. ``nodes`` is the size of
    the last graph that was read, ``shape`` its shape if that is known.
    """

    place: Place
    habit: Habit
    reads: int = 0
    left: int = 0
    shape: Shape | None = None
    nodes: int = 0
    alarm: int = 0


class Counted(NamedTuple):
    """A guarded call of which only the numbers of its nodes were read; ``steps`` counts optimizer
    steps before it. Its fields mean what those of ``Call`` mean.

    The next node had the number ``start`` as it began, and ``sequence_nr`` as it ended, so many
    seconds after the watch had begun.
    """

    number: int
    steps: int
    place: Place
    habit: Habit
    shape: Shape
    of_new_shape: bool
    numbers: Sequence[int]
    fresh: int
    extra: int
    start: int
    sequence_nr: int = 0
    ended: float = 0.0

    @property
    def size(self) -> tuple[int, int]:
        """About how many tensors and bytes the graph saved: for a node as many as one like it."""
        like = self.shape.record
        assert like is not None
        share = len(self.numbers) / like.nodes
        return round(share * like.saved_tensors), round(share * like.saved_bytes)

    @property
    def time(self) -> int:
        """When it ended."""
        return time_at(self.sequence_nr, self.number)

    @property
    def record(self) -> BackwardCall:
        """What the recording gets."""
        return self.call().record

    def call(self) -> Call:
        """Return it with all that a guarded call has."""
        known = {name: getattr(self, name) for name in _OF_COUNTED}
        call = Call(keep=False, open=False, completed=True, exact=False, plain=True, **known)
        call.built, call.builds = self.fresh + self.extra, self.sequence_nr != self.start
        call.roots, call.started, call.guarded = (self.numbers[0],), self.ended, True
        call.began = time_at(self.start, self.number - 1)
        return call


_OF_COUNTED = (
    *("number", "place", "steps", "habit", "shape", "of_new_shape", "numbers", "fresh", "size"),
    *("time", "sequence_nr", "ended"),
)

Guarded: TypeAlias = Call | Counted
"""A guarded call that has ended."""


_OF_A_CALL = ("freed_tensors", "freed_bytes", "returned_bytes", "nodes_built", "nodes_destroyed")


def finished(call: Call, exception: str | None) -> BackwardCall:
    """Return the record of a call that has ended, with what it freed and how it ended."""
    record = call.record
    known: dict[str, Any] = {"retained_bytes": max(0, record.saved_bytes - call.freed_bytes)}
    known |= {name: getattr(call, name) for name in ("ended", "live_bytes", "peak_bytes")}
    if not call.guarded:
        known |= {name: getattr(call, name) for name in _OF_A_CALL}
    return replace(record, last_number=call.number, exception=exception, **known)


def record_of(call: Call) -> BackwardCall:
    """Return the record of a guarded call: that of one like it, and when this one began."""
    like = call.shape.record
    assert like is not None
    return replace(
        like,
        number=call.number,
        last_number=call.number,
        parent=call.parent.number if call.parent else None,
        graph=None if call.of_new_shape else like.graph,
        started=call.started,
        ended=call.ended,
        exception=None,
    )


BEFORE_WATCH = Call(0, None, keep=False)
"""Stands for a backward call that ran before the watch began, or was not inspected."""
BEFORE_WATCH.open = False
