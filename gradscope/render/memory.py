"""What the largest graph of a run saved: by module, by source line, by operation; as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gradscope.model import BackwardCall, Graph, Node, Recording, SavedTensor, Site

NO_MODULE, NO_LINE = "(no module)", "(unknown line)"


class Kind(StrEnum):
    """The keys that bytes are grouped by."""

    MODULE = "module"
    LINE = "line"
    OPERATION = "operation"


@dataclass(frozen=True, slots=True)
class Saved:
    """One storage that a graph saved, and the node that saved it first: most often what made it.

    ``source`` names the variable or buffer of the program that is known to hold it too; ``alone``
    says whether nothing but the graph held it, None where that is not known.
    """

    nbytes: int
    module: str
    module_class: str
    site: Site | None
    operation: str
    source: str
    alone: bool | None
    device: str


@dataclass(frozen=True, slots=True)
class Largest:
    """The backward call whose graph held most when the call began, and what that was."""

    call: BackwardCall
    saved: tuple[Saved, ...]

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(one.nbytes for one in self.saved)

    @property
    def alone(self) -> int | None:
        """The bytes that nothing but the graph held; None where that was not recorded."""
        if all(one.alone is None for one in self.saved):
            return None
        return sum(one.nbytes for one in self.saved if one.alone)


def largest(recording: Recording) -> Largest | None:
    """Return the call with the largest graph, of several the first; None where no graph was
    recorded.
    """
    drawn = [call for call in recording.calls if call.graph in recording.graphs]
    call = max(drawn, key=lambda call: call.saved_bytes, default=None)
    if call is None or call.graph is None:
        return None
    return Largest(call, tuple(_saved(recording.graphs[call.graph])))


def _saved(graph: Graph) -> Iterable[Saved]:
    first: dict[int, tuple[Node, SavedTensor]] = {}
    sources: dict[int, str] = {}
    for node in sorted(graph.nodes, key=lambda node: (node.sequence_nr is None, node.sequence_nr)):
        for tensor in node.saved:
            if not tensor.is_parameter and tensor.nbytes and not tensor.state.is_gone:
                first.setdefault(tensor.storage, (node, tensor))
                if tensor.source:
                    sources.setdefault(tensor.storage, tensor.source)
    for number, (node, tensor) in first.items():
        yield Saved(
            tensor.nbytes,
            node.module or "",
            node.module_class or "",
            tensor.site or node.site,
            node.name,
            sources.get(number, ""),
            tensor.alone,
            tensor.device,
        )


class Size(NamedTuple):
    """Bytes that the graph saved, and how many of them nothing but the graph held."""

    nbytes: int
    alone: int


def by(key: Callable[[Saved], str], saved: Iterable[Saved]) -> dict[str, Size]:
    """Return the sizes for each key, the most first."""
    sums: dict[str, Size] = {}
    for one in saved:
        nbytes, alone = sums.get(key(one), (0, 0))
        sums[key(one)] = Size(nbytes + one.nbytes, alone + one.nbytes * bool(one.alone))
    return dict(sorted(sums.items(), key=lambda item: (-item[1].nbytes, item[0])))


def name_of(
    kind: Kind, one: Saved, place_of: Callable[[Site], str] = lambda site: site.place
) -> str:
    """Return the name of the row to which a saved storage belongs."""
    match kind:
        case Kind.MODULE:
            return f"{one.module} {one.module_class}".strip() or NO_MODULE
        case Kind.LINE:
            return place_of(one.site) if one.site else NO_LINE
        case Kind.OPERATION:
            return one.operation


class Step(NamedTuple):
    """One step on the way from the whole to a saved storage; ``kind`` says what it is.

    The name of a line is that of its function; ``place`` is how a sentence names it.
    """

    kind: Kind
    name: str
    place: str = ""
    file: str = ""
    line: int = 0


def path(kind: Kind, one: Saved) -> Sequence[Step]:
    """Return the steps to a saved storage, the outermost first: the parts of a module's path and
    the operation; the line and the operation; the operation and the line.
    """
    operation = Step(Kind.OPERATION, one.operation)
    site = one.site
    line = Step(Kind.LINE, NO_LINE)
    if site is not None:
        line = Step(Kind.LINE, site.function, site.place, site.file, site.line)
    match kind:
        case Kind.MODULE:
            parts = one.module.split(".") if one.module else []
            names = [".".join(parts[: at + 1]) for at in range(len(parts))] or [NO_MODULE]
            return [*(Step(Kind.MODULE, name) for name in names), operation]
        case Kind.LINE:
            return line, operation
        case Kind.OPERATION:
            return operation, line


@dataclass(slots=True)
class Branch:
    """A part of what was saved, and the parts of that, the largest first."""

    step: Step
    nbytes: int = 0
    alone: int = 0
    parts: dict[Step, Branch] = field(default_factory=dict)


def tree(kind: Kind, saved: Iterable[Saved]) -> Branch:
    """Return all that was saved as a tree of parts."""
    root = Branch(Step(kind, "everything"))
    for one in saved:
        branch = root
        for step in (None, *path(kind, one)):
            if step is not None:
                branch = branch.parts.setdefault(step, Branch(step))
            branch.nbytes += one.nbytes
            branch.alone += one.nbytes * bool(one.alone)
    _sort(root)
    return root


def _sort(branch: Branch) -> None:
    parts = sorted(branch.parts.items(), key=lambda item: (-item[1].nbytes, item[0]))
    branch.parts = dict(parts)
    for part in branch.parts.values():
        _sort(part)
