"""The table of backward calls: alike iterations folded, one row for each kind of call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.model import BackwardCall
from gradscope.render.text.terminal import cut, plain, short_path, signs, wrapped
from gradscope.units import nbytes

MOST_ROWS = 40
_LAST_ROWS = 10
_LONGEST_PERIOD = 8
_MARGIN, _GAP = 2, 2
_NARROWEST_PLACE = 16
_MOST_INPUTS = 3


def folded(calls: Sequence[BackwardCall]) -> list[BackwardCall]:
    """The calls with repeats folded, also those that take turns, as a GAN's two losses do: D, G, D, G."""
    seen: dict[Hashable, int] = {}  # numbers for likenesses: they are compared many times
    keys = [seen.setdefault(_likeness(call), len(seen)) for call in calls]
    rows: list[BackwardCall] = []
    at = 0
    while at < len(calls):
        period, times = _repeat(keys, at)
        for offset in range(period):
            alike = calls[at + offset : at + period * times : period]
            last = max(max(call.last_number, call.number) for call in alike)
            rows.append(
                replace(alike[0], count=sum(call.count for call in alike), last_number=last)
            )
        at += period * times
    return rows


def _likeness(call: BackwardCall) -> Hashable:
    """What two calls must share to be one row: all that the row shows but the numbers of the calls."""
    return (
        *(call.kind, call.site, call.roots, call.retain_graph, call.create_graph, call.inputs),
        *(call.nodes_run, call.saved_bytes, call.freed_bytes, call.retained_bytes),
        *(call.parent is None, call.thread, call.exception),
    )


def _repeat(keys: Sequence[int], at: int) -> tuple[int, int]:
    """The shortest stretch from ``at`` on that is repeated at once, and how often it comes; (1, 1) if none is."""
    for period in range(1, _LONGEST_PERIOD + 1):
        times = 1
        while keys[at : at + period] == keys[at + times * period : at + (times + 1) * period]:
            times += 1
        if times > 1:
            return period, times
    return 1, 1


def calls_table(calls: Sequence[BackwardCall], console: Console) -> list[Text]:
    """The table, two lines a row: number, place and figures; then how often, and the call as it is written.

    In a narrow terminal the column of saved bytes is left out, as what was saved was freed or retained.
    """
    rows = folded(calls)
    first, last = (
        (rows, [])
        if len(rows) <= MOST_ROWS
        else (rows[: MOST_ROWS - _LAST_ROWS], rows[-_LAST_ROWS:])
    )
    columns = _columns([*first, *last], console)
    left = max(map(cell_len, columns[0]))
    room = console.width - _MARGIN - left - _GAP
    figures = columns[1:]
    for dispensable in (1, 0):  # the bytes saved, then the nodes run
        if room - sum(_GAP + max(map(len, column)) for column in figures) < _NARROWEST_PLACE:
            del figures[dispensable]
    lines = _row(
        columns[0][0], "where", [column[0] for column in figures], left, room, figures, console
    )
    table = [Text(lines, style="dim")]
    for index, call in enumerate([*first, *last], 1):
        if last and index == len(first) + 1:
            more = (
                f"{signs(console).ellipsis} {len(rows) - MOST_ROWS:,} more rows, see --format json"
            )
            table.append(Text(" " * (_MARGIN + left + _GAP) + more, style="dim"))
        place = f"{short_path(call.site.file)}:{call.site.line}" if call.site else "unknown line"
        cells = [column[index] for column in figures]
        table.append(
            Text(
                _row(columns[0][index], plain(place, console), cells, left, room, figures, console)
            )
        )
        times = f"{signs(console).times}{call.count:,}" if call.count > 1 else ""
        for part in wrapped(_statement(call, console), room, console):
            table.append(Text.assemble(" " * _MARGIN, f"{times:<{left}}", " " * _GAP, part))
            times = ""
    return table


def _columns(rows: Sequence[BackwardCall], console: Console) -> list[list[str]]:
    """All columns but the place, each with its header first."""
    dash = signs(console).dash
    numbers = [
        f"{c.number:,}" if c.count == 1 else f"{c.number:,}{dash}{c.last_number:,}" for c in rows
    ]
    return [
        ["call", *numbers],
        ["nodes run", *(f"{call.nodes_run:,}" for call in rows)],
        ["saved", *(nbytes(call.saved_bytes) for call in rows)],
        ["freed", *(nbytes(call.freed_bytes) for call in rows)],
        ["retained", *(nbytes(call.retained_bytes) for call in rows)],
    ]


def _row(
    number: str,
    place: str,
    cells: list[str],
    left: int,
    room: int,
    figures: list[list[str]],
    console: Console,
) -> str:
    """The first line of a row, or the header."""
    widths = [max(map(len, column)) for column in figures]
    right = "".join(
        " " * _GAP + f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
    )
    space = max(room - len(right), 0)
    ellipsis = signs(console).ellipsis
    if (over := cell_len(place) - space) > 0:  # the end of a path tells more than its beginning
        place = ellipsis + cut(place, over + cell_len(ellipsis), space)
    padding = " " * max(space - cell_len(place), 0)
    return " " * _MARGIN + f"{number:<{left}}" + " " * _GAP + place + padding + right


def _statement(call: BackwardCall, console: Console) -> Text:
    """The call as a user would write it, and what else is to be known of it."""
    shown = Text(plain(as_code(call), console))
    if call.parent is not None:
        shown.append(f" (inside call {call.parent:,})", style="dim")
    if call.thread != "MainThread":
        shown.append(f" (thread {plain(call.thread, console)})", style="dim")
    if call.exception:
        shown.append(f" raised {plain(call.exception.partition(':')[0], console)}", style="red")
    return shown


def as_code(call: BackwardCall) -> str:
    """``loss.backward(retain_graph=True)``, ``autograd.grad(loss, [x])``, ``backward() of f32[32, 256]``."""
    names = [root.name for root in call.roots if root.name]
    known = names if len(names) == len(call.roots) else []
    several = f"[{', '.join(known)}]" if len(known) > 1 else "".join(known)
    inputs, flags = _inputs(call), _flags(call)
    if call.kind == "grad":
        code = f"autograd.grad({_arguments(several, inputs, flags)})"
    elif len(known) == 1:
        code = f"{known[0]}.backward({_arguments(inputs and f'inputs={inputs}', flags)})"
    else:
        code = f"backward({_arguments(several, inputs and f'inputs={inputs}', flags)})"
    if known or not call.roots:
        return code
    return (
        f"{code} of {call.roots[0].label}"
        if len(call.roots) == 1
        else f"{code} of {len(call.roots):,} roots"
    )


def _arguments(*arguments: str) -> str:
    return ", ".join(argument for argument in arguments if argument)


def _inputs(call: BackwardCall) -> str:
    """The inputs by name where there are few, else their number; empty where the call named none."""
    if call.inputs is None:
        return ""
    return (
        f"[{', '.join(call.inputs)}]"
        if len(call.inputs) <= _MOST_INPUTS
        else f"{len(call.inputs):,} inputs"
    )


def _flags(call: BackwardCall) -> str:
    """The flag that keeps the graph; ``create_graph`` says ``retain_graph`` too."""
    return (
        "create_graph=True"
        if call.create_graph
        else "retain_graph=True"
        if call.retain_graph
        else ""
    )
