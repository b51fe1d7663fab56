"""Findings: what is wrong, where, how certain that is, and the fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gradscope.model.graph import Site
from gradscope.model.listing import Listing
from gradscope.model.printed import Printed


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"

    @property
    def rank(self) -> int:
        """The place in the order of severities: 0 is the worst, and a larger number a lesser severity."""
        return list(Severity).index(self)


class Certainty(StrEnum):
    """How gradscope knows: the engine will raise now, it will if the code goes on so, or it was seen to happen."""

    CERTAIN = "certain"
    PREDICTED = "predicted"
    OBSERVED = "observed"


class FixKind(StrEnum):
    """What a fix does, in a word for machines."""

    DETACH = "detach"
    RECOMPUTE = "recompute"
    SUM_LOSSES = "sum_losses"
    RETAIN_GRAPH = "retain_graph"
    REMOVE_RETAIN = "remove_retain"
    ITEM = "item"
    NO_GRAD = "no_grad"
    REORDER = "reorder"
    CLONE = "clone"
    EAGER = "eager"
    DONATED_BUFFER_OFF = "donated_buffer_off"
    REPORT = "report"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Related:
    """Another place that a finding speaks of; ``role`` is one of created, freed_by, next_read, held_by,
    modified_by, retained_by, linked_by, failing_node.
    """

    role: str
    site: Site | None
    message: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace line ``line`` (1-based) of ``file`` by ``replacement`` (may hold several lines; empty deletes it)."""

    file: str
    line: int
    replacement: str


@dataclass(frozen=True, slots=True)
class Fix:
    """What an expert would do: ``kind`` for machines, ``message`` for people, ``edits`` where it can be written down."""

    kind: str
    message: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding(Printed):
    """One problem, said once per cause; ``count`` tells how often it was met.

    ``nodes`` and ``saved`` name what is concerned (``AddmmBackward0``; ``self f32[8, 32]``). ``caught`` is True when the
    program caught the exception that the engine raised. ``missed`` marks an error of the engine that gradscope
    had not called first: a fault of gradscope, shown as such.
    """

    code: str
    name: str
    severity: Severity
    certainty: Certainty
    message: str
    site: Site | None
    label: str = ""
    related: tuple[Related, ...] = ()
    nodes: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    bytes: int = 0
    backward_call: int = 0
    count: int = 1
    fix: Fix | None = None
    caught: bool = False
    missed: bool = False
    graph: int | None = None
    graph_nodes: tuple[int, ...] = ()

    @property
    def cause(self) -> tuple[Any, ...]:
        """Two findings with the same cause are one finding met twice."""
        made = tuple(
            (r.role, r.site)
            for r in self.related
            if r.role in ("created", "freed_by", "modified_by", "held_by")
        )
        return (self.code, self.site, made)


class Findings(list[Finding]):
    """The findings of a watch, in the order in which they were met; a list that a person can read when it is printed."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(map(str, self)) or "no finding"

    __repr__ = __str__


class Hazards(Listing[Finding]):
    """What would make a backward call fail now; empty where it would run."""

    __slots__ = ()
    nothing = "backward would run: no saved tensor that it needs was freed or modified"
