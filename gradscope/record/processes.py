"""Finds the recordings of one run's processes, merges them, and reports how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

from gradscope.errors import GradscopeError
from gradscope.formatting import counted, listed
from gradscope.model import (
    BackwardCall,
    Cause,
    Finding,
    Graph,
    Node,
    Process,
    Recording,
    Site,
    Summary,
    Training,
)
from gradscope.record.file import HEAD, head_of, load

_LARGEST = ("live_bytes", "peak_saved_bytes", "cost")
"""Totals that are of one moment or a share: of several processes the largest counts."""

Shape = tuple[tuple[str, str | None, str | None], ...]


def files_of(file: Path) -> list[Path]:
    """Return the files of a run that was told to save its recording as ``file``, those in a folder,
    or those of the process of that number, which has them open.

    Where each rank has written its own, as ``run-0.gscope``, these are there in its place.
    """
    if file.is_dir():
        if there := sorted(file.glob("*.gscope")):
            return there
        raise GradscopeError(f"{file}: no recording (*.gscope) is in this folder")
    if file.exists():
        return [file]
    if str(file).isdecimal() and (there := [*_open_in(int(str(file)))]):
        return there
    ranks = {
        path.stem.removeprefix(f"{file.stem}-"): path
        for path in file.parent.glob(f"{escape(file.stem)}-*{escape(file.suffix)}")
    }
    return [ranks[rank] for rank in sorted(filter(str.isdecimal, ranks), key=int)] or [file]


def _open_in(process: int) -> Iterator[Path]:
    """Yield the recordings that a process writes, with or without a name."""
    for path in filter(Path.is_file, Path(f"/proc/{process}/fd").glob("*")):
        with suppress(FileNotFoundError), path.open("rb") as file:  # it may be closed meanwhile
            head = head_of(file.read(HEAD.size))
            if head is not None and head.process == process:  # and has not got it from its parent
                yield path


def load_run(file: Path) -> Recording:
    """Return the recording of a run, of all its ranks if each has written a file.

    Raise GradscopeError if they cannot be loaded, or are those of several runs.
    """
    recordings = [load(one) for one in files_of(file)]
    if len(recordings) > 1 and not are_of_one_run(recordings):
        files = ", ".join(map(str, files_of(file)))
        raise GradscopeError(f"{file}: no such file, and {files} are of several runs: name one")
    return merged(recordings) if len(recordings) > 1 else recordings[0]


def merged(recordings: Sequence[Recording]) -> Recording:
    """Return one recording of all: each finding once, with the processes that met it.

    Graphs that are the same in several processes are there once. The memory curve is that of the
    first; each process has its own.
    """
    ordered = sorted(recordings, key=_order)
    names = _names(ordered)
    first = ordered[0]
    graphs: dict[Graph, int] = {}
    calls: list[BackwardCall] = []
    found: dict[Cause, Finding] = {}
    for name, recording in zip(names, ordered, strict=True):
        numbers: dict[int | None, int] = {
            own: graphs.setdefault(graph, len(graphs) + 1)
            for own, graph in recording.graphs.items()
        }
        calls += [replace(c, process=name, graph=numbers.get(c.graph)) for c in recording.calls]
        for finding in recording.findings:
            graph = numbers.get(finding.graph)
            nodes = () if graph is None else finding.graph_nodes
            new = replace(finding, graph=graph, graph_nodes=nodes, count=0)
            known = found.get(finding.cause, new)
            processes, count = (*known.processes, name), known.count + finding.count
            found[finding.cause] = replace(known, processes=processes, count=count)
    outcomes = [recording.outcome for recording in ordered]
    # One that raised, else one that was stopped.
    worst = min(outcomes, key=lambda each: (not each.exception, each.finished))
    return replace(
        first,
        outcome=worst,
        summary=_total([recording.summary for recording in ordered]),
        calls=tuple(sorted(calls, key=lambda call: call.number)),
        graphs={number: graph for graph, number in graphs.items()},
        findings=tuple(found.values()),
        sources={k: text for recording in ordered for k, text in recording.sources.items()},
        processes=tuple(_processes(names, ordered)),
    )


def are_of_one_run(recordings: Sequence[Recording]) -> bool:
    """Return whether these are the ranks of one run, or the processes that one has started."""
    headers = [recording.header for recording in recordings]
    ranks = {header.rank for header in headers}
    runs = {header.run for header in headers}
    of_ranks = None not in ranks and len(ranks) == len(headers)
    of_run = len(runs) == 1 and "" not in runs
    apart = len({header.pid for header in headers}) == len(headers)  # no file named twice
    return len(headers) > 1 and (of_ranks or (of_run and apart))


def _order(recording: Recording) -> tuple[bool, int, float]:
    header = recording.header
    return header.rank is None, header.rank or 0, header.started


def _names(recordings: Sequence[Recording]) -> list[str]:
    """Return a name for each, with its machine where there are several; where two have the same
    one, with the number of the process.
    """
    headers = [recording.header for recording in recordings]
    several = len({header.host for header in headers}) > 1
    names = [f"{h.process} on {h.host}" if several and h.host else h.process for h in headers]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [
        f"{name} (process {header.pid})" if name in twice else name
        for name, header in zip(names, headers, strict=True)
    ]


def _total(summaries: Sequence[Summary]) -> Summary:
    def of(name: str) -> Any:
        values = [getattr(summary, name) for summary in summaries]
        return max(values) if name in _LARGEST else sum(values)

    joined: dict[str, Any] = {
        "exact": all(summary.exact for summary in summaries),
        "training": _trained([summary.training for summary in summaries]),
        "unread": _together(summary.unread for summary in summaries),
        "notes": tuple(dict.fromkeys(note for summary in summaries for note in summary.notes)),
    }
    rest = (field.name for field in fields(Summary) if field.name not in joined)
    return Summary(**{name: of(name) for name in rest}, **joined)


def _together(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter[str]()))


def _trained(each: Sequence[Training]) -> Training:
    """Return what all of them trained; a process that stepped no optimizer adds nothing."""
    stepped = [one for one in each if one.optimizers]
    if not stepped:
        return each[0]
    return Training(
        optimizers=sum(one.optimizers for one in stepped),
        steps=min(one.steps for one in stepped),
        parameters=sum(one.parameters for one in stepped),
        reached=sum(one.reached for one in stepped),
        not_yet=_together(one.not_yet for one in stepped),
        frozen=_together(one.frozen for one in stepped),
        known=all(one.known for one in each),
        once=min((one.once for one in stepped if one.once is not None), default=None),
        table=next((one.table for one in stepped if one.table is not None), None),
    )


def _processes(names: Sequence[str], recordings: Sequence[Recording]) -> Iterator[Process]:
    differences = _differences(recordings)
    for name, recording, differs in zip(names, recordings, differences, strict=True):
        header = recording.header
        command = " ".join((header.script, *header.argv))
        found = sum(finding.counts for finding in recording.findings)
        what = (name, command, recording.summary, recording.outcome, found, differs)
        yield Process(*what, header.pid, header.clock or header.started, recording.timeline)


def _differences(recordings: Sequence[Recording]) -> list[str]:
    """Return for each rank in what it first differs from the others, in a sentence.

    What most ranks have is what the others differ from; of two, what the lower one has. Processes
    that are not ranks are expected to differ.
    """
    ranks = [_Rank(recording) for recording in recordings if recording.header.rank is not None]
    told: dict[int, str] = {}
    for number in sorted({number for rank in ranks for number in rank.firsts}):
        there = [(rank, rank.at(number)) for rank in ranks if id(rank.recording) not in told]
        met = [(rank, own) for rank, own in there if own is not None]
        counts = Counter(own.shape for _, own in met)
        usual = max(counts, key=counts.__getitem__, default=None)  # the first of equally many
        known = next((own for _, own in met if own.shape == usual), None)
        for rank, own in met:
            if known is not None and own.shape != usual and not rank.may_meet(usual, own.call):
                told[id(rank.recording)] = _difference(number, own, known)
    calls = [rank.recording.summary.backward_calls for rank in ranks]
    for rank, number in zip(ranks, calls, strict=True):
        if number != max(calls):
            short = f"it made {counted(number, 'backward call')}, and another rank {max(calls):,}"
            told.setdefault(id(rank.recording), short)
    return [told.get(id(recording), "") for recording in recordings]


class _MetGraph(NamedTuple):
    """A row of calls, the graph that they met, and what of it is the same in each rank."""

    call: BackwardCall
    graph: Graph
    shape: Shape


class _Rank:
    """The graphs that one rank has met; ``firsts`` are the calls that met one of a new shape."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        met = ((call, recording.graphs.get(call.graph or 0)) for call in recording.calls)
        self._rows = [_MetGraph(call, graph, _shape(graph)) for call, graph in met if graph]
        of_shape = {row.shape: row for row in reversed(self._rows)}
        self.firsts = {row.call.number: row for row in of_shape.values()}

    def at(self, number: int) -> _MetGraph | None:
        """Return what the call of this number has met."""
        first = self.firsts.get(number)
        return first or next((row for row in self._rows if row.call.includes(number)), None)

    def may_meet(self, shape: Shape | None, call: BackwardCall) -> bool:
        """Return whether calls in turns with this one meet such a graph: the order is not known."""
        return any(row.shape == shape and row.call.includes(call.number) for row in self._rows)


def _shape(graph: Graph) -> Shape:
    return tuple((node.name, node.module, node.variable) for node in graph.nodes)


def _difference(number: int, own: _MetGraph, usual: _MetGraph) -> str:
    """Return in what the graph of a call differs from the usual one."""
    begun = f"the graph of backward call {number:,}{_at(own.call.site)}"
    mine, theirs = _parameters(own.graph), _parameters(usual.graph)
    if lacking := [name for name in theirs if name not in mine]:
        names = listed(f"`{name}`" for name in lacking)
        without = f"{begun} does not lead to {names}, as those of the others do"
        waits = "DistributedDataParallel waits for gradients of them that never come"
        return f"{without}: {waits}, unless it was given find_unused_parameters=True"
    if more := [name for name in mine if name not in theirs]:
        names = listed(f"`{name}`" for name in more)
        return f"{begun} leads to {names}, and those of the others do not"
    for one, other in zip(own.graph.nodes, usual.graph.nodes, strict=False):
        if (one.name, one.module) != (other.name, other.module):
            return f"{begun} has {_node(one)} where the others have {_node(other)}"
    nodes, others = len(own.graph.nodes), len(usual.graph.nodes)
    return f"{begun} has {counted(nodes, 'node')}, those of the others have {others:,}"


def _parameters(graph: Graph) -> list[str]:
    return [node.variable for node in graph.nodes if node.variable is not None]


def _node(node: Node) -> str:
    where = f" of `{node.module}`" if node.module else ""
    return f"{node.name}{where}{_at(node.site)}"


def _at(site: Site | None) -> str:
    return "" if site is None else f" ({site.place})"
