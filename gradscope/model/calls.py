"""Backward calls, who trains what, totals, the memory curve, and the recording with all of them."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gradscope.formatting import current_dir
from gradscope.model.finding import Failure, Finding, by_weight
from gradscope.model.graph import Graph, Printed, Root, Site


class CellState(StrEnum):
    """What becomes of the gradients of a module's parameters that the calls at one line give."""

    TRAINS = "trains"
    REACHED = "reached"
    """They come, and no step of their optimizer was seen since, or no optimizer is known."""
    ZEROED = "zeroed_unused"
    NEVER_USED = "never_used"
    """They come, and no optimizer that has stepped holds the parameters."""
    CUT = "cut"
    NO_WAY = "no_way"
    FROZEN = "frozen"
    NO_GRADIENT = "no_gradient"
    """None comes, and no rehearsal has shown why."""


@dataclass(frozen=True, slots=True)
class TrainingCell:
    """How the calls of one loss train a module.

    ``optimizer`` is the number of the one that holds the parameters. ``first_step`` is the first
    of its steps that used such a gradient, where that came late, else 0. ``site`` is the line that
    cuts the way by an ``operation``, or that froze the parameters, where a rehearsal has shown it.
    """

    state: CellState
    optimizer: int | None = None
    first_step: int = 0
    site: Site | None = None
    operation: str = ""


@dataclass(frozen=True, slots=True)
class TrainingLoss:
    """The backward calls of one line; ``name`` is what they start from, if that has a name."""

    name: str
    site: Site | None
    calls: int


@dataclass(frozen=True, slots=True)
class TrainingOptimizer:
    """An optimizer that has stepped."""

    name: str
    kind: str
    site: Site | None
    steps: int


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """The outermost module whose parameters have all cells in common, or what the names of several
    have in common: ``blocks.*.gamma``. ``sizes`` are the numbers that each parameter has.
    """

    module: str
    parameters: tuple[str, ...]
    sizes: tuple[int, ...]
    cells: tuple[TrainingCell, ...]

    @property
    def is_fine(self) -> bool:
        """Whether some loss trains it, or none is to."""
        return any(cell.state in (CellState.TRAINS, CellState.FROZEN) for cell in self.cells)


@dataclass(frozen=True, slots=True)
class TrainingTable:
    """A row for each module, with a cell for each loss."""

    optimizers: tuple[TrainingOptimizer, ...]
    losses: tuple[TrainingLoss, ...]
    rows: tuple[TrainingRow, ...]
    rehearsed: bool = False

    @property
    def frozen_at(self) -> list[Site]:
        """The lines that froze parameters, if all of them are known."""
        frozen = [row.cells[0].site for row in self.rows if row.cells[0].state is CellState.FROZEN]
        known = [site for site in frozen if site is not None]
        return known if len(known) == len(frozen) else []


SCHEMA = 1
"""Version of the JSON output; grows when an old reader would misread the new."""


FIGURES = (
    *("nodes", "nodes_run", "saved_tensors", "saved_bytes", "freed_tensors", "freed_bytes"),
    *("returned_bytes", "retained_bytes", "peak_bytes", "nodes_built", "nodes_destroyed"),
)
"""The sizes in the record of a call: of similar calls that share a row, the largest each, as far as
they were watched.
"""


@dataclass(frozen=True, slots=True)
class BackwardCall(Printed):
    """One ``backward()`` or ``autograd.grad()``; ``number`` counts from 1.

    Bytes: the graph held ``saved_bytes`` when the call began, let go of ``freed_bytes`` in the
    call, and still held ``retained_bytes`` when it ended; ``returned_bytes`` of those freed went
    back to the allocator, as nothing else held them. All watched graphs held ``live_bytes`` after
    the call, and ``peak_bytes`` at most since the previous call. ``started`` and ``ended`` are
    seconds since the run began. ``parent`` is the enclosing call of a reentrant one. ``count``
    similar calls are folded into this row, from ``number`` to ``last_number``. ``driven``: a
    library makes it in a loop that the line at ``site`` has started, as ``trainer.fit()`` does.
    ``process`` says which of several processes made it.
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
    driven: bool = False
    process: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_number", max(self.number, self.last_number))

    def includes(self, number: int) -> bool:
        """Return whether a call of this number is, or may be, among those of the row."""
        return self.number <= number <= self.last_number


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, and with what.

    ``script`` is the path, ``-m module`` or ``-c``; ``started`` is in seconds since the epoch;
    ``cwd`` is the directory in which the program was started, empty if that is unknown; ``code`` is
    what ``-c`` was given. ``rank`` is that of ``torch.distributed``, among ``ranks``, and ``pid``
    the number of the process. Processes that were started by a watched one share its ``run``.
    ``clock`` is when the seconds of calls and samples began to count, in seconds since the epoch.
    ``host`` is the name of the machine.
    """

    gradscope: str
    torch: str
    python: str
    script: str
    argv: tuple[str, ...] = ()
    started: float = 0.0
    hooks: bool = True
    cwd: str = ""
    code: str | None = None
    rank: int | None = None
    ranks: int = 1
    pid: int = 0
    run: str = ""
    clock: float = 0.0
    host: str = ""

    @classmethod
    def of_process(cls, script: str, argv: Iterable[str], hooks: bool, **more: Any) -> Header:
        """Return the header of a program that starts now, with ``more`` of its fields."""
        return cls(
            python=platform.python_version(),
            script=script,
            argv=tuple(argv),
            started=time.time(),
            hooks=hooks,
            cwd=current_dir(),
            rank=number_given("RANK"),
            ranks=number_given("WORLD_SIZE") or 1,
            pid=os.getpid(),
            host=platform.node(),
            **more,
        )

    @property
    def process(self) -> str:
        """How a sentence names the process, among those of one run."""
        return f"process {self.pid}" if self.rank is None else f"rank {self.rank}"


def number_given(variable: str) -> int | None:
    """Return a number that a launcher of several ranks has put into the environment."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended; ``finished`` is False if the process was killed before it wrote that.

    Its ``exit_status`` is then that of its process, negative for a signal, if it is known, and
    ``running`` says in a sentence that it still went on when the recording was read, or may.
    ``failure`` is what is known of its ``exception``, where no finding explains that.
    """

    exit_status: int | None = None
    exception: str | None = None
    finished: bool = False
    ended: float = 0.0
    running: str = ""
    failure: Failure | None = None

    @property
    def unfinished(self) -> str:
        """Why there is no end, in a sentence."""
        if self.running or self.exit_status is None:
            return self.running or "the run was stopped before it could finish"
        if self.exit_status >= 0:
            how = f"exited with status {self.exit_status} without a normal Python shutdown"
            return f"the run {how} (os._exit, or exec of another program)"
        try:
            name = signal.Signals(-self.exit_status).name
        except ValueError:
            name = f"signal {-self.exit_status}"
        who = " (as the system does when memory runs out)" if name == "SIGKILL" else ""
        return f"the run was ended by {name}{who} before it could finish"


@dataclass(frozen=True, slots=True)
class Training:
    """What the optimizers that have stepped did with gradients, unless that is not ``known``.

    ``steps`` is how often the one has stepped that did so least, ``name`` what the only one is
    called. They hold ``parameters`` that require grad, but for those that a step changed without a
    gradient; ``reached`` of them had a gradient at some step; ``not_yet`` are those that may have
    one later, and ``frozen`` those in the program's modules whose ``requires_grad`` is off:
    patterns of names, each with how many it stands for.
    None of the first ``once`` steps, or of all, used a gradient again; 0 if some did.
    ``table`` says which of them the calls of which loss train, once the watch has ended.
    """

    optimizers: int = 0
    steps: int = 0
    name: str = ""
    parameters: int = 0
    reached: int = 0
    not_yet: dict[str, int] = field(default_factory=dict)
    frozen: dict[str, int] = field(default_factory=dict)
    known: bool = True
    once: int | None = None
    table: TrainingTable | None = None


@dataclass(frozen=True, slots=True)
class Summary(Printed):
    """Totals of a run; bytes are of saved activations, each storage once, no parameters.

    ``predicted`` failures are the warnings that a backward call will fail, of which ``came_true``
    did. ``left_out`` findings had too few bytes to be reported. ``estimated_calls`` were guarded:
    what they saved and freed is not counted, but estimated from fully inspected calls.
    ``uncounted_nodes`` were built after the last call, and what they saved is in no figure.
    ``exact``: there is none of either. ``nodes_unmet`` were built and met by no call: whether they
    live is not known. ``nodes_before`` were met and built before the watch: they are not among
    ``nodes``, and what they saved is in no figure.
    ``unread`` says how often what the program does next could not be read on, by the reason.
    ``cost`` is the share of the time from the first call to the last that the watch took, by its
    own clock; 0 where that was not measured.
    """

    backward_calls: int = 0
    nodes: int = 0
    nodes_destroyed: int = 0
    nodes_unmet: int = 0
    nodes_before: int = 0
    saved_tensors: int = 0
    saved_bytes: int = 0
    freed_tensors: int = 0
    freed_bytes: int = 0
    returned_bytes: int = 0
    dropped_tensors: int = 0
    dropped_bytes: int = 0
    live_bytes: int = 0
    peak_saved_bytes: int = 0
    predicted: int = 0
    came_true: int = 0
    left_out: int = 0
    exact: bool = True
    estimated_calls: int = 0
    uncounted_nodes: int = 0
    cost: float = 0.0
    training: Training = Training()
    unread: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def nodes_alive(self) -> int:
        """Nodes that calls met and that are alive at the end."""
        return self.nodes + self.nodes_before - self.nodes_destroyed - self.nodes_unmet


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of the memory curve.

    ``time`` is in seconds since the run began. Graphs hold ``live_bytes``; they have released
    ``held_bytes`` that something else still holds. ``call`` is the number of the last backward
    call. ``alike``: the bytes are those of an earlier call on the same kind of graph, as the hooks
    were suspended.
    """

    time: float
    live_bytes: int
    held_bytes: int
    call: int
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One of several processes of a run: ``rank 1``, or ``process 4711``, and what it did.

    ``differs`` says in a sentence in what its graphs first differ from those of the others.
    """

    name: str
    script: str
    summary: Summary
    outcome: Outcome
    findings: int = 0
    differs: str = ""
    pid: int = 0
    clock: float = 0.0
    timeline: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording(Printed):
    """A whole run, as every view reads it: calls folded, graphs by number, findings by severity.

    That of several processes has them as ``processes``, each with its own timeline; here is that of
    the first.
    """

    header: Header
    outcome: Outcome = Outcome()
    summary: Summary = Summary()
    calls: tuple[BackwardCall, ...] = ()
    graphs: dict[int, Graph] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    timeline: tuple[Sample, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    processes: tuple[Process, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", by_weight(self.findings))
