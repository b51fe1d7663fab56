"""A backward call while it runs, and what later calls need to know of it."""

from __future__ import annotations

from gradscope.collect.habits import Habit
from gradscope.collect.shapes import NO_SHAPE, Repeat, Shape
from gradscope.collect.thread_numbers import this_thread
from gradscope.hooks import Pair
from gradscope.model import BackwardCall, Finding
from gradscope.program.sites import Place

NO_HABIT = Habit()


class Call:
    """A backward call, numbered from 1.

    ``record`` is what the recording gets; it is made when the call begins and replaced when the
    call ends. A call is ``plain`` when it has nothing around it and nothing wrong with its graph,
    ``known`` when nothing in that is new to calls of its ``habit``; ``fresh`` counts the nodes that
    were built since the call before. ``exact`` calls ask of every freed tensor whether its memory
    returned; calls on a known shape do not. ``unhooked`` counts the
    tensors and bytes that the graph saved while the hooks were lifted; ``repeat`` is what the look
    at a graph without hooks has recognized, while the call runs; ``pushed`` are the program's own
    default hooks when the call began; ``met`` is another call that ran on the same nodes meanwhile,
    and ``beside`` one in another thread. ``woken``: an alarm asks for a close look.
    """

    __slots__ = (
        "beside",
        "completed",
        "exact",
        "findings",
        "freed_bytes",
        "freed_tensors",
        "fresh",
        "habit",
        "keep",
        "known",
        "met",
        "number",
        "open",
        "parent",
        "place",
        "plain",
        "pushed",
        "record",
        "repeat",
        "returned_bytes",
        "roots",
        "sequence_nr",
        "shape",
        "steps",
        "thread",
        "unhooked",
        "woken",
    )

    def __init__(self, number: int, place: Place | None, keep: bool) -> None:
        self.number = number
        self.place = place
        self.keep = keep
        self.open = True
        self.completed = False
        self.exact = True
        self.parent: Call | None = None
        self.met: Call | None = None
        self.beside: Call | None = None
        self.roots: tuple[int, ...] = ()
        self.sequence_nr = 0
        self.steps = 0
        self.freed_tensors = self.freed_bytes = self.returned_bytes = 0
        self.shape: Shape = NO_SHAPE
        self.repeat: Repeat | None = None
        self.plain = False
        self.pushed: tuple[Pair, ...] = ()
        self.thread = this_thread.number
        self.unhooked = (0, 0)
        self.fresh = 0
        self.known = False
        self.habit = NO_HABIT
        self.woken = False
        self.findings: list[Finding] = []
        self.record = BackwardCall(number, "backward")

    @property
    def announced(self) -> set[str]:
        """The codes of what was found before the engine ran."""
        return {finding.code for finding in self.findings}


BEFORE_WATCH = Call(0, None, keep=False)
"""Stands for a backward call that ran before the watch began."""
