"""Where the memory of a run is, as tables with bars; and how that differs between two runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.model import Recording
from gradscope.render.memory import Kind, Largest, Saved, Size, by, largest, name_of
from gradscope.render.text.calls import as_code
from gradscope.render.text.terminal import (
    ELLIPSIS,
    distinct,
    place_of,
    plain,
    print_lines,
    print_message,
)
from gradscope.units import count, counted, listed, nbytes

_MOST_ROWS, _MOST_BENEATH = 12, 5
_BENEATH = "  "
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.| |$)")
_WIDEST_NAME, _NARROWEST_BAR, _WIDEST_BAR = 48, 8, 30
_NOTHING = "no graph was recorded, so there is nothing to show"

Row = tuple[str, Sequence[str], Text]
"""A name, its figures, and what is drawn behind them."""


def _by(kind: Kind, saved: Iterable[Saved], console: Console) -> dict[str, Size]:
    """Return the sizes of the rows of a table."""
    return by(lambda one: name_of(kind, one, lambda site: place_of(site, console)), saved)


def print_memory(recording: Recording, console: Console) -> None:
    """Print what the largest graph saved."""
    graph = largest(recording)
    if graph is None:
        print_lines(console, [Text(_NOTHING)])
        return
    _print_head(graph, recording, console)
    for kind in Kind:
        sums = _by(kind, graph.saved, console)
        most = max((size.nbytes for size in sums.values()), default=1)
        rows: list[Row] = []
        for name, size in sums.items():
            beneath = _beneath(name, size, graph, console) if kind is Kind.LINE else {}
            for each, part in ((name, size), *beneath.items()):
                bar = "█" * max(round(part.nbytes / most * 100), 1)  # cut to the table's width
                rows.append((each, _cells(part, graph), Text(bar, style="cyan")))
        if graph.alone is not None:
            rows.insert(0, ("", ("saved", "", "alone"), Text()))
        _print_table(f"by {kind}", rows, console)


def _beneath(name: str, size: Size, graph: Largest, console: Console) -> dict[str, Size]:
    """Return what lies beneath a line with most of the bytes, of a model of more modules than the
    table of them shows: a library's trainer runs all of it from one line of the user's.
    """
    if size.nbytes <= graph.nbytes / 2 or len({one.module for one in graph.saved}) <= _MOST_ROWS:
        return {}
    place = partial(place_of, console=console)
    own = [one for one in graph.saved if name_of(Kind.LINE, one, place) == name]
    alike = by(lambda one: _NUMBER.sub("*", name_of(Kind.MODULE, one)), own)
    return {f"{_BENEATH}{name}": alike[name] for name in list(alike)[:_MOST_BENEATH]}


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
    devices = by(lambda one: one.device, graph.saved)
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
        names = listed(f"`{one.source}`" for one in sorted(known, key=lambda one: -one.nbytes))
        size = nbytes(sum(one.nbytes for one in known))
        print_message(indent, f"{size} is in variables of the program too: {names}", console)
    print_lines(console, [Text()])


def print_diff(before: Recording, after: Recording, console: Console) -> None:
    """Print how the memory, the totals and the findings of two runs differ."""
    rows: list[Row] = []
    for name, figure, str_of in _FIGURES:
        sizes = figure(before), figure(after)
        if None not in sizes:
            rows.append((name, _change(*sizes, str_of=str_of), Text()))
    _print_table("totals", [("", ("before", "after", "change"), Text()), *rows], console)
    graphs = [largest(one) for one in (before, after)]
    for kind in (Kind.MODULE, Kind.OPERATION):  # lines move with the change that is looked at
        sums = [
            {name: size.nbytes for name, size in _by(kind, graph.saved, console).items()}
            if graph
            else {}
            for graph in graphs
        ]
        changed = {
            name: (sums[0].get(name, 0), sums[1].get(name, 0))
            for name in (*sums[0], *sums[1])
            if sums[0].get(name) != sums[1].get(name)
        }
        order = sorted(changed, key=lambda name: -abs(changed[name][1] - changed[name][0]))
        if order:
            _print_table(
                f"largest graph, by {kind}",
                [(name, _change(*changed[name]), Text()) for name in order],
                console,
            )
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
    ("backward calls", attrgetter("summary.backward_calls"), count),
    ("nodes built", attrgetter("summary.nodes"), count),
)
"""The totals that two runs are compared by; None where a recording does not have one."""


def _change(before: int, after: int, str_of: Callable[[int], str] = nbytes) -> tuple[str, ...]:
    """Return both figures, and the difference with its sign."""
    sign = "+" if after > before else "-"
    change = "" if after == before else f"{sign}{str_of(abs(after - before))}"
    return str_of(before), str_of(after), change


def _print_table(title: str, rows: Sequence[Row], console: Console) -> None:
    """Print rows under a title: names cut from the left, figures right, bars as wide as fits."""
    most = _MOST_ROWS + (not rows[0][0])  # a head has no name
    rows, hidden = rows[:most], rows[most:]
    widths = [max(len(row[1][at]) for row in rows) for at in range(len(rows[0][1]))]
    figures = sum(width + 2 for width in widths)
    margins = [_BENEATH * name.startswith(_BENEATH) for name, _, _ in rows]
    names = [plain(name, console) for name, _, _ in rows]
    longest = max(map(cell_len, names))
    bars = _NARROWEST_BAR if any(drawn.cell_len for _, _, drawn in rows) else 0
    room = max(min(longest, _WIDEST_NAME, console.width - figures - bars - 4), 8)
    bar = min(max(console.width - room - figures - 5, 0), _WIDEST_BAR)
    print_lines(console, [Text(title, style="bold")])
    names = [name.removeprefix(_BENEATH) for name in names]
    names = distinct(names, room - len(max(margins)))
    for margin, name, (_, cells, drawn) in zip(margins, names, rows, strict=True):
        line = Text(f"  {margin}{name}{' ' * (room - cell_len(margin + name))}")
        for width, cell in zip(widths, cells, strict=True):
            line.append(f"  {cell:>{width}}")
        length = -(-drawn.cell_len * bar // 100)
        line.append("  ").append_text(drawn[:length])
        line.rstrip()
        print_lines(console, [line])
    if hidden:
        more = f"  {ELLIPSIS} {counted(len(hidden), 'more row')}"
        print_lines(console, [Text(more, style="dim")])
    print_lines(console, [Text()])
