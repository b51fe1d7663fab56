"""Findings: what is wrong, where, how certain that is, and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from gradscope.formatting import duration, nbytes, rounded
from gradscope.model.graph import Listing, Printed, Site

_BY_HAND = ("GS401", "GS506", "GS603", "GS604")
"""Of these no edit is known, or none can be tried: what to do is said in words alone."""


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"

    @property
    def rank(self) -> int:
        """The place in the order of severities: 0 is the worst."""
        return list(Severity).index(self)


class Certainty(StrEnum):
    """Whether the engine raises now, will if the program goes on unchanged, or it was observed."""

    CERTAIN = "certain"
    PREDICTED = "predicted"
    OBSERVED = "observed"


class FixKind(StrEnum):
    """What a fix does, in a word for machines."""

    DETACH = "detach"
    RECOMPUTE = "recompute"
    RESET = "reset"
    SUM_LOSSES = "sum_losses"
    RETAIN_GRAPH = "retain_graph"
    CREATE_GRAPH = "create_graph"
    ATTACH = "attach"
    REMOVE_RETAIN = "remove_retain"
    ITEM = "item"
    NO_GRAD = "no_grad"
    REORDER = "reorder"
    CLONE = "clone"
    EAGER = "eager"
    DONATED_BUFFER_OFF = "donated_buffer_off"
    SMALLER_BATCH = "smaller_batch"
    REPORT = "report"
    ALLOW_UNUSED = "allow_unused"
    OTHER = "other"


class Applicability(StrEnum):
    """How safe a fix is to apply, in the words that compilers use.

    Machine-applicable: proven on this run. Maybe incorrect: it changes what is trained.
    """

    MACHINE_APPLICABLE = "machine-applicable"
    MAYBE_INCORRECT = "maybe-incorrect"
    UNSPECIFIED = "unspecified"


class Proof(StrEnum):
    """What became of a fix when the program was run with it.

    Held: the call that failed passed, what came after it too, and each step used the gradients of
    the losses that are meant. Trains otherwise: all of that but the last.
    """

    UNTRIED = "untried"
    HELD = "held"
    TRAINS_OTHERWISE = "trains-otherwise"


@dataclass(frozen=True, slots=True)
class Related:
    """Another place that a finding names.

    ``role`` is one of created, freed_by, next_read, held_by, modified_by, retained_by, linked_by,
    failing_node. Where no gradient arrives it is one of cut (what goes in requires grad, and what
    comes out does not), mode (what switched grad mode off, or froze), left and back (numbers or
    arrays left torch, and were taken up again), emptied (a group of an optimizer that holds
    nothing), left_by (a call whose gradients were not reset) and made (a layer, a value).
    """

    role: str
    site: Site | None
    message: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the lines ``line`` (from 1) to ``end_line`` of ``file`` by those of ``replacement``.

    An empty ``replacement`` deletes them. Without an ``end_line`` it is the one line.
    """

    file: str
    line: int
    replacement: str
    end_line: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "end_line", max(self.line, self.end_line))

    @property
    def lines(self) -> range:
        """The numbers of the lines that it replaces."""
        return range(self.line, self.end_line + 1)


@dataclass(frozen=True, slots=True)
class Fix:
    """What an expert would do: ``kind`` for machines, ``message`` for people, ``edits`` if any.

    ``effects`` are sentences on what it means for the training, and ``reason`` is why it is
    proposed, in half a sentence. ``proof`` is whether it was tried.
    """

    kind: FixKind
    message: str
    edits: tuple[Edit, ...] = ()
    applicability: Applicability = Applicability.UNSPECIFIED
    effects: tuple[str, ...] = ()
    reason: str = ""
    proof: Proof = Proof.UNTRIED


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known of an exception that came out of autograd and that no finding explains.

    ``site`` is the line of the user's that raised it, ``related`` are the node, the call and what
    else had a part in it, ``help`` says what to do.
    """

    site: Site
    label: str
    related: tuple[Related, ...] = ()
    help: str = ""


class SuppressionKind(StrEnum):
    """Where a finding is suppressed, in SARIF's words: in the source, or in settings."""

    IN_SOURCE = "inSource"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class Suppression:
    """Why a finding does not count; ``reason`` follows "suppressed"."""

    kind: SuppressionKind
    reason: str


# A rate by the hour that was seen for fewer seconds says little about the hours to come.
_LONG_ENOUGH = 5.0
# Hours until memory is full from which on nothing is said: few programs run for a week.
_FAR = 7 * 24


@dataclass(frozen=True, slots=True)
class Holding:
    """What a holder held after a number of ``iterations``, ``time`` seconds after the run began, in
    bytes: what graphs have ``saved``, the ``outputs`` that it keeps themselves, and the nodes.

    ``modules`` has what was saved by module, the most first, as far as that is known.
    """

    iterations: int
    time: float
    saved: int
    outputs: int
    nodes: int
    modules: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return self.saved + self.outputs + self.nodes

    def ahead(self, first: Holding, iterations: int, time: float) -> Holding:
        """Return what it is later on if it goes on as it has since the first look."""
        part = (iterations - first.iterations) / (self.iterations - first.iterations)
        pairs = zip(*((one.saved, one.outputs, one.nodes) for one in (first, self)), strict=True)
        saved, outputs, nodes = (old + round((new - old) * part) for old, new in pairs)
        return Holding(iterations, time, saved, outputs, nodes)


@dataclass(frozen=True, slots=True)
class Trend:
    """How what a ``holder`` keeps has grown from look to look, and how many bytes were ``free`` at
    the last one: of the ``device`` that the tensors are on, or of the machine.
    """

    holder: str
    looks: tuple[Holding, ...]
    device: str = "cpu"
    free: int = 0

    @property
    def grown(self) -> int:
        """The bytes that have come between the first look and the last."""
        return self.looks[-1].nbytes - self.looks[0].nbytes if self.looks else 0

    @property
    def each(self) -> float:
        """The bytes that each iteration adds."""
        of = self.looks[-1].iterations - self.looks[0].iterations if self.looks else 0
        return self.grown / max(1, of)

    @property
    def hourly(self) -> float:
        """The bytes that an hour adds; 0 where it was not seen for long enough to say that."""
        seconds = self.looks[-1].time - self.looks[0].time if self.looks else 0
        return 3600 * self.grown / seconds if seconds >= _LONG_ENOUGH else 0.0


def outlook(trends: Sequence[Trend]) -> tuple[str, str]:
    """Return how much these add together, and when memory is full, where that is soon enough to say
    so; empty texts where it was not seen for long enough.
    """
    device = max(trends, key=lambda one: one.hourly, default=Trend("", ())).device
    own = [one for one in trends if one.device == device and one.hourly > 0]
    if not own:
        return "", ""
    hourly, free = sum(one.hourly for one in own), min(one.free for one in own)
    fastest = max(own, key=lambda one: one.hourly)
    each = hourly * fastest.each / fastest.hourly  # by its steps, where there are several loops
    rate = f"{nbytes(round(each))} per step, {nbytes(round(hourly))} per hour"
    if not 0 < free <= _FAR * hourly:
        return rate, ""
    of = "memory" if device == "cpu" else f"the memory of {device}"
    when = f"about {duration(3600 * free / hourly)} ({rounded(free / each)} steps)"
    return rate, f"at this rate {of} is full in {when}"


Cause: TypeAlias = tuple[str, str, Site | None, tuple[tuple[str, Site | None], ...]]


@dataclass(frozen=True, slots=True)
class Finding(Printed):
    """One problem, announced once per cause; ``count`` is how often it was met.

    ``nodes`` and ``saved`` name what is concerned (``AddmmBackward0``; ``self f32[8, 32]``).
    ``missed`` marks an error of the engine that gradscope did not report before: a bug in
    gradscope, shown as such. ``silent``: the backward call that it predicts raises nothing, and
    computes a wrong gradient. Of a prediction that a call will fail, ``came_true`` says that the
    call did, and ``withdrawn`` why it did not. ``alternatives`` are the other
    fixes, best first. ``suppression`` is set for a view, not in a recording. ``processes``
    are those that met it, of several. ``untried`` says why no fix is shown that was tried.
    ``parameters`` are those that it is about, as the program knows them
    (``model.encoder.0.weight``), and ``step`` is the optimizer's step that shows it, wherever
    ``site`` is. ``trend`` says how fast what it is about grows.
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
    missed: bool = False
    graph: int | None = None
    graph_nodes: tuple[int, ...] = ()
    silent: bool = False
    came_true: bool = False
    withdrawn: str = ""
    alternatives: tuple[Fix, ...] = ()
    suppression: Suppression | None = None
    processes: tuple[str, ...] = ()
    untried: str = ""
    parameters: tuple[str, ...] = ()
    step: Site | None = None
    trend: Trend | None = None

    @property
    def anchor(self) -> Site | None:
        """The step or call that shows it: that stays the same, however much is known of the cause
        and of the line to edit.
        """
        return self.step or self.site

    @property
    def counts(self) -> bool:
        """Whether it stands: it was neither withdrawn nor suppressed."""
        return not self.withdrawn and self.suppression is None

    @property
    def is_born(self) -> bool:
        """Whether it is about gradients that do not arrive or are not used: a rehearsal of where
        each tensor comes from shows why.
        """
        return self.code in ("GS501", "GS502", "GS503", "GS504", "GS505")

    @property
    def is_of_resets(self) -> bool:
        """Whether it is about gradients that are never reset, or at a line before the step."""
        return self.code == "GS504" or (self.code == "GS503" and self.site != self.step)

    @property
    def is_to_mend(self) -> bool:
        """Whether it stands, is not advice, and has no fix that was tried and held. What holds
        graphs holds them, however few they are.
        """
        is_mended = self.fix is not None and self.fix.proof is Proof.HELD
        is_mere = self.severity is Severity.ADVICE and self.code != "GS302"
        is_told = is_mere or self.code in _BY_HAND
        return self.counts and not is_told and not is_mended

    @property
    def is_to_rehearse(self) -> bool:
        """Whether a rehearsal may find more: a fix, or where the way to a parameter is cut."""
        return self.is_to_mend or (self.is_born and self.counts)

    @property
    def is_fixable(self) -> bool:
        """Whether `gradscope fix` shows an edit, or may find one where a run has not looked."""
        is_open = not self.untried or "`gradscope fix" in self.untried
        has_edits = self.counts and any(fix.edits for fix in self.fixes)
        return has_edits or (self.is_to_rehearse and is_open)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """All that could be done: ``fix``, and the alternatives to it."""
        return (() if self.fix is None else (self.fix,)) + self.alternatives

    def with_fixes(self, fixes: Sequence[Fix]) -> Finding:
        """Return the finding with these fixes, the best first."""
        return replace(self, fix=fixes[0] if fixes else None, alternatives=tuple(fixes[1:]))

    @property
    def predicts_error(self) -> bool:
        """Whether it says that a backward call will fail: advice says that one may."""
        is_certain = self.severity is Severity.WARNING
        return self.certainty is Certainty.PREDICTED and is_certain and not self.silent

    def is_fulfilled_by(self, later: Finding) -> bool:
        """Return whether ``later`` is the error that this finding predicts."""
        is_failure = (later.severity, later.certainty) == (Severity.ERROR, Certainty.CERTAIN)
        is_it = is_failure and self.predicts_error
        return is_it and (self.expects(later.site) or self.announces(later))

    @property
    def cause(self) -> Cause:
        """Two findings with the same cause are one finding met twice.

        What a step shows of its parameters is one, be its cause known or not.
        """
        if self.step is not None:
            return (self.code, "", self.step, tuple((name, None) for name in self.parameters))
        roles = ("created", "freed_by", "modified_by", "held_by")
        made = tuple((one.role, one.site) for one in self.related if one.role in roles)
        return (self.code, self.severity.value, self.site, made)

    def announces(self, later: Finding) -> bool:
        """Return whether ``later`` is the failure that this finding warned of.

        Both blame the same line for what was freed or modified; and ``later`` is at the line where
        this one expects the failure, or has the same fix.
        """
        if self.severity is Severity.ERROR or later.severity is not Severity.ERROR:
            return False
        if not self._lines("freed_by", "modified_by") & later._lines("freed_by", "modified_by"):
            return False
        mend, its = (each.fix and (each.fix.kind, each.fix.message) for each in (self, later))
        return self.expects(later.site) or (mend is not None and mend == its)

    def expects(self, site: Site | None) -> bool:
        """Return whether this finding says that the call at ``site`` will fail."""
        expected = self._lines("next_read", "failing_node")
        return site is not None and (site.file, site.line) in expected

    def _lines(self, *roles: str) -> set[tuple[str, int]]:
        sites = (one.site for one in self.related if one.role in roles)
        return {(site.file, site.line) for site in sites if site is not None}


def by_weight(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order in which a reader wants them: the errors, each behind what
    foretold it, then the warnings, then advice; alike ones as they were made.
    """
    found = tuple(findings)
    errors = [each for each in found if each.severity is Severity.ERROR]

    def weight(finding: Finding) -> tuple[bool, int, int]:
        foretold = finding.came_true or any(map(finding.announces, errors))
        rank = 0 if foretold else finding.severity.rank
        return bool(finding.withdrawn), rank, finding.backward_call

    return tuple(sorted(found, key=weight))


class Findings(Printed, list[Finding]):
    """The findings of a watch, in the order in which they were made; print it to read it."""

    __slots__ = ()
    __repr__ = Printed.__str__


class Hazards(Listing[Finding]):
    """What would make a backward call fail now; empty if it would run."""

    __slots__ = ()
    nothing = "backward would run: it has a graph, and nothing that it needs was freed or modified"
