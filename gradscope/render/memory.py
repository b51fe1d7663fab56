"""What the largest graph of a run saved: by module, by source line, by operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gradscope.model import BackwardCall, Graph, Node, Recording, SavedTensor, Site


@dataclass(frozen=True, slots=True)
class Saved:
    """One storage that a graph saved, and the node that saved it first: most often what made it.

    ``source`` names the variable or buffer of the program that is known to hold it too.
    """

    nbytes: int
    module: str
    module_class: str
    site: Site | None
    operation: str
    source: str


@dataclass(frozen=True, slots=True)
class Largest:
    """The backward call whose graph held most when the call began, and what that was."""

    call: BackwardCall
    saved: tuple[Saved, ...]

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(one.nbytes for one in self.saved)


def largest(recording: Recording) -> Largest | None:
    """Return the call with the largest graph; None where no graph was recorded.

    Of several processes it is a call of the first, whose graphs the recording has.
    """
    first = recording.processes[0].name if recording.processes else ""
    drawn = [
        call for call in recording.calls if call.process == first and call.graph in recording.graphs
    ]
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
        )


def by(key: Callable[[Saved], str], saved: Iterable[Saved]) -> dict[str, int]:
    """Return the bytes for each key, the most first."""
    sums: dict[str, int] = {}
    for one in saved:
        sums[key(one)] = sums.get(key(one), 0) + one.nbytes
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
