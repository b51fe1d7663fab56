"""A backward call: what it asks of the engine, and what later calls need to know of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple

from torch.autograd.graph import Node

from gradscope.collect.shapes import NO_SHAPE, Habit, Shape
from gradscope.collect.walk import root_node
from gradscope.hooks import carry
from gradscope.model import FIGURES, BackwardCall, Finding
from gradscope.program.sites import Place
from gradscope.program.undisturbed import Allowance
from gradscope.torch_private import CALL

INPUTS = 4
"""In ``EngineCall.kind``: the call runs only what leads to some inputs."""


class EngineCall(NamedTuple):
    """What a backward call asks of the engine. ``accumulates`` is False for ``autograd.grad``."""

    outputs: Sequence[Any]
    keep_graph: bool
    create_graph: bool
    inputs: Sequence[Any]
    accumulates: bool

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
        return cls(
            t_outputs, bool(keep_graph), bool(create_graph), inputs or (), bool(accumulate_grad)
        )

    @property
    def roots(self) -> list[Node]:
        """The nodes that it starts from."""
        return [node for node in map(root_node, self.outputs) if node is not None]

    @property
    def kind(self) -> int:
        """A number that is another for each way of asking."""
        kept = self.keep_graph + 2 * self.create_graph
        return kept + INPUTS * bool(self.inputs) + 8 * self.accumulates

    @property
    def word(self) -> str:
        """The word for it in the record of the call."""
        return "backward" if self.accumulates else "grad"


NO_HABIT = Habit()


class Call:
    """A backward call, numbered from 1.

    All threads that the engine runs it in have it in common, as torch carries it into them: it is
    the ``parent`` of a call that any of them makes, and ``frame``, as long as it is open, is where
    their stacks go on. ``own`` is told of the calls of the watch's own thread, and of those within
    them, ``explained`` which error of a call within it was explained.

    A call is ``plain`` when it is ``own`` with nothing wrong with its graph, ``known`` when nothing
    in that is new to calls of its ``habit``; a call within a plain one may be plain too, and
    ``within`` counts those. ``built`` counts the nodes that were built since the call before,
    ``fresh`` those of them that are in its graph; it ``builds`` if its thread has built some
    meanwhile. ``exact`` calls ask of every freed tensor whether
    its memory returned; calls on a known shape do not. ``unhooked`` counts the tensors and bytes
    that the graph saved while the hooks were lifted; ``met`` is another call that ran on the same
    nodes meanwhile, and ``beside`` one that is not around it. ``woken``: an alarm asks for a close
    look. ``word`` is its kind in the recording.

    A call on a graph that was recognized while the hooks are lifted is ``guarded``: ``numbers`` are
    those of its nodes in depth-first order, 0 for leaves, and ``lowest`` is no higher than any of
    them; the graph saved ``size`` tensors and bytes, and if that is ``estimated``, ``shape`` is
    that of a graph like it.
    """

    # Most calls differ from these in few points; what is not set costs nothing.
    open: bool = True
    completed: bool = False
    exact: bool = True
    plain: bool = False
    known: bool = False
    woken: bool = False
    own: bool = True
    parent: Call | None = None
    frame: FrameType | None = None
    explained: int = 0
    met: Call | None = None
    beside: Call | None = None
    roots: tuple[int, ...] = ()
    sequence_nr: int = 0
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
    estimated: bool = False
    numbers: array[int] = array("Q")
    lowest: int = 0
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

    def __init__(self, number: int, place: Place | None, keep: bool) -> None:
        self.number = number
        self.place = place
        self.keep = keep

    def begin(self, parent: Call | None, frame: FrameType) -> None:
        """Have torch carry the call into the threads that run it."""
        self.parent, self.frame = parent, frame
        carry(CALL, self)

    def end(self, *, completed: bool) -> None:
        """Leave this thread to the call around."""
        self.open, self.completed, self.frame = False, completed, None
        carry(CALL, self.parent)
        if self.allowance is not None:
            self.allowance.end()

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


def figures_of(call: Call) -> tuple[int, ...]:
    """Return the sizes in the record of a call that has ended, or is guarded."""
    like, nodes, size = call.shape.record, len(call.numbers), call.size
    if not call.guarded:
        like = call.record
        nodes, size = like.nodes, (like.saved_tensors, like.saved_bytes)
    assert like is not None
    return (
        *(nodes, nodes * like.nodes_run // (like.nodes or 1), *size),
        *(call.freed_tensors, call.freed_bytes, call.returned_bytes),
        *(max(0, size[1] - call.freed_bytes), call.peak_bytes),
        *(call.nodes_built, call.nodes_destroyed),
    )


def finished(call: Call, record: BackwardCall, **known: Any) -> BackwardCall:
    """Return a record with the sizes of a call, how it ended, and what else is known of it."""
    known |= zip(FIGURES, figures_of(call), strict=True)
    known |= {"ended": call.ended, "live_bytes": call.live_bytes, "last_number": call.number}
    return replace(record, **known)


def record_of(call: Call) -> BackwardCall:
    """Return the record of a guarded call, made from that of one like it."""
    like = call.shape.record
    assert like is not None
    parent = call.parent.number if call.parent else None
    graph, began = None if call.estimated else like.graph, call.started
    return finished(
        call, like, number=call.number, parent=parent, graph=graph, started=began, exception=None
    )


BEFORE_WATCH = Call(0, None, keep=False)
"""Stands for a backward call that ran before the watch began."""
