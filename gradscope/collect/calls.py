"""A backward call while it runs, and what later calls need to know of it."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from gradscope.collect.shapes import NO_SHAPE, Repeat, Shape
from gradscope.model import BackwardCall, Finding
from gradscope.program.sites import Place


class Call:
    """A backward call while it runs, and what later calls need to know of it."""

    __slots__ = (
        "calls_first",
        "completed",
        "exact",
        "fields",
        "findings",
        "freed_bytes",
        "freed_tensors",
        "keep",
        "number",
        "open",
        "parent",
        "place",
        "plain",
        "record",
        "repeat",
        "returned_bytes",
        "roots",
        "sequence_nr",
        "shape",
        "steps",
        "thread",
        "unhooked",
    )

    def __init__(self, number: int, place: Place | None, keep: bool) -> None:
        self.number = number
        self.place = place
        self.keep = keep
        self.open = True
        self.completed = False
        self.exact = True
        """Ask of every freed tensor whether its memory returned; left out for graphs that were met before."""
        self.parent: Call | None = None
        self.roots: tuple[int, ...] = ()
        self.sequence_nr = 0
        self.steps = 0
        self.calls_first: set[str] = set()
        self.freed_tensors = self.freed_bytes = self.returned_bytes = 0
        self.shape: Shape = NO_SHAPE
        self.repeat: Repeat | None = None
        """What the look at a graph without hooks has recognized, while the call runs."""
        self.plain = False
        """No flags, nothing around it and nothing wrong with its graph, all of which was built since the call before."""
        self.thread = get_ident()
        self.unhooked = (0, 0)
        """Tensors and bytes that its graph saved while the hooks were lifted."""
        self.findings: list[Finding] = []
        self.fields: dict[str, Any] = {}
        self.record: BackwardCall | None = None


BEFORE_WATCH = Call(0, None, keep=False)
"""Stands for a backward call that ran before the watch began."""
