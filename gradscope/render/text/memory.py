"""Where the memory of a run is, as tables with bars; and how that differs between two runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradscope.model import Recording
from gradscope.render.memory import GroupBy, Largest, Saved, Size, by, largest, name_of
from gradscope.render.text.calls import as_code
from gradscope.render.text.terminal import (
    ELLIPSIS,
    place_of,
    plain,
    print_lines,
    print_message,
    print_table,
)
from gradscope.units import counted, listed, nbytes

_MOST_ROWS = 12
_NOTHING = "no graph was recorded, so there is nothing to show"

BarRow = tuple[str, Sequence[str], float]
"""A name, its figures, and how long the bar behind them is, of 1."""


def _by(kind: GroupBy, saved: Iterable[Saved], console: Console) -> dict[str, Size]:
    """Return the sizes of the rows of a table."""
    return by(lambda one: name_of(kind, one, lambda site: place_of(site, console)), saved)


def print_memory(recording: Recording, console: Console) -> None:
    """Print what the largest graph saved."""
    graph = largest(recording)
    if graph is None:
        print_lines(console, [Text(_NOTHING)])
        return
    _print_head(graph, recording, console)
    for kind in GroupBy:
        sums = _by(kind, graph.saved, console)
        most = max((size.nbytes for size in sums.values()), default=1)
        rows = [(name, _cells(size, graph), size.nbytes / most) for name, size in sums.items()]
        head = ("", "") if graph.alone is None else ("saved", "", "alone")
        _print_table(f"by {kind}", head, rows, console)


def _cells(size: Size, graph: Largest) -> tuple[str, ...]:
    """Return the figures of a row; without those that the recording does not have."""
    cells = nbytes(size.nbytes), f"{size.nbytes / graph.nbytes:.0%}"
    return cells if graph.alone is None else (*cells, nbytes(size.alone))


def _print_head(graph: Largest, recording: Recording, console: Console) -> None:
    """Print which graph it is, and what else is known of its bytes."""
    call, summary = graph.call, recording.summary
    where = place_of(call.site, console)
    of = f"backward call {call.number:,}"
    if call.count > 1:
        of = f"each of backward calls {call.number:,}\N{EN DASH}{call.last_number:,}"
    of += f" of {call.process}" if call.process else ""
    at = f" at {where}" if where else ""
    lead = Text("memory: ", style="bold")
    what = f"{nbytes(graph.nbytes)} saved in the graph of {of}{at}: `{as_code(call)}`"
    print_message(lead, what, console)
    indent = Text(" " * lead.cell_len)
    if summary.peak_saved_bytes > graph.nbytes:
        peak = nbytes(summary.peak_saved_bytes)
        print_message(indent, f"all graphs together held {peak} at the peak of the run", console)
    devices = by(lambda one: one.tensor.device, graph.saved)
    if devices.keys() - {"cpu"}:
        sizes = listed(f"{nbytes(size.nbytes)} on {name}" for name, size in devices.items())
        print_message(indent, f"of that {sizes}", console)
    if graph.alone is not None:
        others = graph.nbytes - graph.alone
        rest = f"{nbytes(others)} was held by something else too, the rest by the graph alone"
        print_message(indent, rest if others else "nothing else than the graph held it", console)
    elif call.freed_bytes > call.returned_bytes:
        elsewhere = nbytes(call.freed_bytes - call.returned_bytes)
        freed = nbytes(call.freed_bytes)
        held = f"of {freed} that the call released, {elsewhere} was still held by others"
        print_message(indent, held, console)
    known = [one for one in graph.saved if one.source]
    if known:
        names = listed(
            f"`{one.source}`" for one in sorted(known, key=lambda one: -one.tensor.nbytes)
        )
        size = nbytes(sum(one.tensor.nbytes for one in known))
        print_message(indent, f"{size} is in variables of the program too: {names}", console)
    print_lines(console, [Text()])


def print_diff(before: Recording, after: Recording, console: Console) -> None:
    """Print how the memory, the totals and the findings of two runs differ."""
    rows: list[BarRow] = []
    for name, figure, str_of in _FIGURES:
        sizes = figure(before), figure(after)
        if None not in sizes:
            rows.append((name, _change(*sizes, str_of=str_of), 0))
    _print_table("totals", ("before", "after", "change"), rows, console)
    graphs = [largest(one) for one in (before, after)]
    saved = [graph.saved if graph else () for graph in graphs]
    for kind in (GroupBy.MODULE, GroupBy.OPERATION):  # lines move with the change that is looked at
        sums = [
            {name: size.nbytes for name, size in _by(kind, one, console).items()} for one in saved
        ]
        changed = {
            name: (sums[0].get(name, 0), sums[1].get(name, 0))
            for name in (*sums[0], *sums[1])
            if sums[0].get(name) != sums[1].get(name)
        }
        order = sorted(changed, key=lambda name: -abs(changed[name][1] - changed[name][0]))
        if order:
            rows = [(name, _change(*changed[name]), 0) for name in order]
            _print_table(f"largest graph, by {kind}", ("", "", ""), rows, console)
    _print_findings(before, after, console)


def _print_findings(before: Recording, after: Recording, console: Console) -> None:
    """Print which findings are new and which are gone, by code."""
    names = {one.code: one.name for run in (before, after) for one in run.findings}
    counts = [Counter(one.code for one in run.findings if one.counts) for run in (before, after)]
    lines = []
    for word, more in (("gone", counts[0] - counts[1]), ("new", counts[1] - counts[0])):
        lines += [
            f"  {word}: {code} {names[code]}{f', {n:,} times' if n > 1 else ''}"
            for code, n in sorted(more.items())
        ]
    print_lines(console, [Text("findings", style="bold")])
    print_lines(console, [Text(plain(line, console)) for line in lines or ["  the same"]])


_FIGURES: tuple[tuple[str, Callable[[Recording], Any], Callable[[int], str]], ...] = (
    ("saved in the largest graph", lambda run: getattr(largest(run), "nbytes", 0), nbytes),
    ("held by it alone", lambda run: getattr(largest(run), "alone", None), nbytes),
    ("held at the peak", attrgetter("summary.peak_saved_bytes"), nbytes),
    ("held at the end", attrgetter("summary.live_bytes"), nbytes),
    ("saved in all", attrgetter("summary.saved_bytes"), nbytes),
    ("backward calls", attrgetter("summary.backward_calls"), "{:,}".format),
    ("nodes built", attrgetter("summary.nodes"), "{:,}".format),
)
"""The totals that two runs are compared by; None where a recording does not have one."""


def _change(before: int, after: int, str_of: Callable[[int], str] = nbytes) -> tuple[str, ...]:
    """Return both figures, and the difference with its sign."""
    sign = "+" if after > before else "-"
    change = "" if after == before else f"{sign}{str_of(abs(after - before))}"
    return str_of(before), str_of(after), change


def _print_table(title: str, head: Sequence[str], rows: Sequence[BarRow], console: Console) -> None:
    """Print rows under a title: long names folded, figures right, then a bar."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="", show_header=any(head))
    table.add_column(overflow="fold")
    for column in head:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    for name, cells, share in rows[:_MOST_ROWS]:
        bar = "█" * math.ceil(share * console.width / 4)
        table.add_row(Text(plain(name, console)), *cells, bar)
    print_lines(console, [Text(title, style="bold")])
    print_table(table, console)
    if len(rows) > _MOST_ROWS:
        more = f"  {ELLIPSIS} {counted(len(rows) - _MOST_ROWS, 'more row')}"
        print_lines(console, [Text(more, style="dim")])
    print_lines(console, [Text()])
