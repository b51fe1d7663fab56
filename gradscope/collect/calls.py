"""A backward call while it runs, and what later calls need to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from gradscope.collect.habits import Habit
from gradscope.collect.shapes import NO_SHAPE, Repeat, Shape
from gradscope.hooks import carry
from gradscope.model import FIGURES, BackwardCall, Finding
from gradscope.program.sites import Place
from gradscope.program.undisturbed import Allowance
from gradscope.torch_private import CALL

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
    that the graph saved while the hooks were lifted; ``repeat`` is what the look at a graph without
    hooks has recognized, and ``figures`` the sizes in its record; ``met`` is another call that ran
    on the same nodes meanwhile, and ``beside`` one that is not around it. ``woken``: an alarm asks
    for a close look. ``word`` is its kind in the recording.
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
    repeat: Repeat | None = None
    findings: Sequence[Finding] = ()
    started: float = 0.0
    ended: float = 0.0
    live_bytes: int = 0
    peak_bytes: int = 0
    nodes_built: int = 0
    nodes_destroyed: int = 0
    figures: tuple[int, ...] = ()
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
        """What the recording gets; of a call on a recognized graph it is made when it is asked
        for.
        """
        if self._record is not None:
            return self._record
        if self.repeat is None:
            return BackwardCall(self.number, "backward")
        if self.open:
            return record_of(self)
        self._record = record_of(self)
        return self._record

    @record.setter
    def record(self, record: BackwardCall) -> None:
        self._record = record

    @property
    def announced(self) -> set[str]:
        """The codes of what was found before the engine ran."""
        return {finding.code for finding in self.findings}


def figures_of(call: Call, repeat: Repeat) -> tuple[int, ...]:
    """Return the sizes in the record of a call on a recognized graph."""
    before = repeat.shape.record
    assert before is not None
    nodes, run = before.nodes, before.nodes_run
    tensors, nbytes = before.saved_tensors, before.saved_bytes
    if repeat.estimate is not None:
        tensors, nbytes = repeat.estimate
        nodes = len(repeat.numbers)
        run = nodes * run // (before.nodes or 1)
    return (
        *(nodes, run, tensors, nbytes, call.freed_tensors, call.freed_bytes),
        *(call.returned_bytes, max(0, nbytes - call.freed_bytes), call.peak_bytes),
        *(call.nodes_built, call.nodes_destroyed),
    )


def record_of(call: Call) -> BackwardCall:
    """Return the record of a call on a recognized graph, made from an earlier one."""
    repeat = call.repeat
    assert repeat is not None
    before = repeat.shape.record
    assert before is not None
    figures: dict[str, Any] = dict(
        zip(FIGURES, call.figures or figures_of(call, repeat), strict=True)
    )
    return replace(
        before,
        **figures,
        number=call.number,
        parent=call.parent.number if call.parent else None,
        graph=before.graph if repeat.estimate is None else None,
        started=call.started,
        ended=call.ended,
        live_bytes=call.live_bytes,
        exception=None,
        last_number=call.number,
    )


BEFORE_WATCH = Call(0, None, keep=False)
"""Stands for a backward call that ran before the watch began."""
