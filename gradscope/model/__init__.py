"""The plain, frozen data that every layer above collecting works on: no torch object is ever in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gradscope.model.listing import Listing

SCHEMA = 1
"""Version of the recording and of the JSON output; grows when a reader of the old one would misread the new."""


class Severity(StrEnum):
    """How bad a finding is; the order of the members is the order of the severities, worst first."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


class Certainty(StrEnum):
    """How gradscope knows: the engine will raise now, it will if the code goes on so, or it was seen to happen."""

    CERTAIN = "certain"
    PREDICTED = "predicted"
    OBSERVED = "observed"


class NodeState(StrEnum):
    """Life of a node: all it saved is there, it was freed, kept on purpose, saved nothing, or gone."""

    LIVE = "live"
    RETAINED = "retained"
    FREED = "freed"
    STALE = "stale"
    BUFFERLESS = "bufferless"
    DESTROYED = "destroyed"


class SavedState(StrEnum):
    """Life of a saved tensor: saved, kept by a retaining call, freed by a call, or dropped with its graph."""

    SAVED = "saved"
    RETAINED = "retained"
    FREED = "freed"
    STALE = "stale"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in source code. Lines and columns are 1-based; the end column is the first one after the text."""

    file: str
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0
    function: str = "<module>"


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that a node saved for its derivative.

    ``name`` is the derivative formula's own (``self``, ``weight``, ``result``), None where torch shows none;
    ``storage`` numbers the storage within one graph, so equal numbers mean shared memory; ``nbytes`` is that of
    the whole storage, which is what the graph keeps alive; ``source`` is a parameter's or buffer's qualified name.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    storage: int = 0
    version: int = 0
    state: SavedState = SavedState.SAVED
    is_parameter: bool = False
    source: str | None = None
    site: Site | None = None

    @property
    def label(self) -> str:
        """Name, dtype and shape as in ``self f32[8, 32]``."""
        kind = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return f"{self.name} {kind}" if self.name else kind


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a backward graph; ``index`` is its place in ``Graph.nodes``.

    ``sequence_nr`` is torch's own (creation order within a thread; None for AccumulateGrad). ``variable`` is the
    qualified name of the leaf that an AccumulateGrad node feeds. ``freed_by`` is the number of the backward call
    that freed the node, ``built_after`` that of the last backward call that had run when the node was built. ``unneeded``
    are the tensors that a derivative of this kind may save and that this one, with these inputs, had no need of.
    """

    index: int
    name: str
    state: NodeState = NodeState.LIVE
    sequence_nr: int | None = None
    saved: tuple[SavedTensor, ...] = ()
    site: Site | None = None
    module: str | None = None
    module_class: str | None = None
    variable: str | None = None
    variable_label: str | None = None
    freed_by: int | None = None
    built_after: int = 0
    will_run: bool = True
    unneeded: tuple[str, ...] = ()

    @property
    def is_leaf(self) -> bool:
        """True for an AccumulateGrad node: the end of a path, where a gradient arrives in ``.grad``."""
        return self.variable_label is not None

    @property
    def saved_bytes(self) -> int:
        """Bytes of this node's saved activations, each storage counted once, parameters not counted."""
        return sum({s.storage: s.nbytes for s in self.saved if not s.is_parameter}.values())


@dataclass(frozen=True, slots=True)
class Edge:
    """``source`` hands its gradient to input ``input_nr`` of ``target``: the backward direction, as in ``next_functions``."""

    source: int
    target: int
    input_nr: int = 0


@dataclass(frozen=True, slots=True)
class Root:
    """Where a backward starts: the tensor's name in the user's code where known, its node, dtype and shape."""

    node: int
    name: str | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A backward graph as seen at one moment, nodes in depth-first order from the roots.

    ``not_looked_at`` counts edges at which the walk stopped because the graph was too deep to touch safely.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    roots: tuple[Root, ...]
    not_looked_at: int = 0

    def __str__(self) -> str:
        from gradscope.render.text.printed import graph_text  # loaded only by whoever prints

        return graph_text(self)

    def to_dot(self, **options: Any) -> str:
        """The graph in graphviz's language; ``options`` are those of :func:`gradscope.to_dot`."""
        from gradscope.api.draw import to_dot  # the drawing layer is loaded only by whoever draws

        return to_dot(self, **options)

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved activations that the graph still holds, each storage counted once."""
        held = (SavedState.SAVED, SavedState.RETAINED, SavedState.STALE)
        return sum(
            {
                s.storage: s.nbytes
                for n in self.nodes
                for s in n.saved
                if not s.is_parameter and s.state in held
            }.values()
        )


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """One ``backward()`` or ``autograd.grad()``; ``number`` counts from 1.

    Bytes: ``saved_bytes`` was held by the graph when the call began, ``freed_bytes`` the graph let go of in the
    call, ``returned_bytes`` of those went back to the allocator (nobody else held them), ``retained_bytes`` the
    graph still held when the call ended. ``live_bytes`` is what all watched graphs held after the call,
    ``peak_bytes`` the most they held since the previous call. ``started`` and ``ended`` are seconds since the run
    began. ``parent`` is the enclosing call of a reentrant one. ``count`` is the number of alike calls folded into
    this row (``number`` is the first of them, ``last_number`` the last).
    """

    number: int
    kind: str
    site: Site | None = None
    roots: tuple[Root, ...] = ()
    retain_graph: bool = False
    create_graph: bool = False
    inputs: tuple[str, ...] | None = None
    graph: int | None = None
    nodes: int = 0
    nodes_run: int = 0
    saved_tensors: int = 0
    saved_bytes: int = 0
    freed_tensors: int = 0
    freed_bytes: int = 0
    returned_bytes: int = 0
    retained_bytes: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    nodes_built: int = 0
    nodes_destroyed: int = 0
    oldest_generation: int | None = None
    parent: int | None = None
    thread: str = "MainThread"
    started: float = 0.0
    ended: float = 0.0
    exception: str | None = None
    count: int = 1
    last_number: int = 0

    def __str__(self) -> str:
        from gradscope.render.text.printed import call_text

        return call_text(self)


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
class Finding:
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

    def __str__(self) -> str:
        from gradscope.render.text.printed import finding_text

        return finding_text(self)

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


class SavedTensors(Listing[tuple[str, SavedTensor]]):
    """The saved tensors of a graph, each with the name of its node."""

    __slots__ = ()
    nothing = "no saved tensor is there"

    def __str__(self) -> str:
        from gradscope.render.text.printed import saved_tensors_text

        return saved_tensors_text(self) if self else self.nothing

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, and with what. ``script`` is the path, ``-m module`` or ``-c``; times are seconds since the epoch.

    ``cwd`` is the directory in which the program was started, empty where that is not known; ``code`` what ``-c`` was given.
    """

    gradscope: str
    torch: str
    python: str
    script: str
    argv: tuple[str, ...] = ()
    started: float = 0.0
    hooks: bool = True
    schema: int = SCHEMA
    cwd: str = ""
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended; ``finished`` is False when the process was killed before it could say so."""

    exit_status: int | None = None
    exception: str | None = None
    finished: bool = False
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a run. Bytes are those of saved activations, each storage counted once, parameters not counted."""

    backward_calls: int = 0
    nodes: int = 0
    nodes_destroyed: int = 0
    saved_tensors: int = 0
    saved_bytes: int = 0
    freed_tensors: int = 0
    freed_bytes: int = 0
    returned_bytes: int = 0
    dropped_tensors: int = 0
    dropped_bytes: int = 0
    live_bytes: int = 0
    peak_saved_bytes: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        from gradscope.render.text.printed import summary_text

        return summary_text(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of the memory curve: seconds since the run began, bytes held by graphs, bytes released by graphs that
    someone else still holds, and the number of the last backward call.
    """

    time: float
    live_bytes: int
    held_bytes: int
    call: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole run, as every view reads it. ``calls`` are folded; ``graphs`` maps a graph's number to its first sight."""

    header: Header
    outcome: Outcome = Outcome()
    summary: Summary = Summary()
    calls: tuple[BackwardCall, ...] = ()
    graphs: dict[int, Graph] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    timeline: tuple[Sample, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
