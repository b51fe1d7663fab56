"""Prints who trains what: a table of modules by losses, or a block a module where it is narrow."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.model import CellState, Recording, TrainingTable
from gradscope.render.text.terminal import ELLIPSIS, plain, print_lines, wrapped
from gradscope.render.theme import CELL_STATES
from gradscope.render.wording import (
    cell_words,
    is_trained,
    loss_words,
    trains_title,
    where_lost,
    whole_cell,
)
from gradscope.units import counted

_MOST_ROWS = 40
_GRAVE = (CellState.CUT, CellState.NEVER_USED, CellState.TRAINS)
_NOTHING = "no optimizer has stepped after a backward call, so nothing is known of who trains what"


def is_telling(recording: Recording) -> bool:
    """Return whether a report has the table: there are two losses, or what is not trained."""
    table = recording.summary.training.table
    codes = {finding.code for finding in recording.findings if finding.counts}
    return table is not None and (len(table.losses) > 1 or bool({"GS502", "GS503"} & codes))


def print_trains(recording: Recording, console: Console) -> None:
    """Print the table of a recording."""
    table = recording.summary.training.table
    if table is None:
        print_lines(console, [Text(_NOTHING)])
        return
    title = Text.assemble(
        ("who trains what", "bold"), f": {plain(trains_title(recording, table), console)}"
    )
    print_lines(console, wrapped(title, console.width, console))
    lines = _wide(recording, table, console)
    if max(line.cell_len for line in lines) > console.width:
        lines = _narrow(recording, table, console)
    met = {cell.state: None for row in table.rows for cell in row.cells}
    looks = [CELL_STATES[state] for state in CellState if state in met]
    legend = "  ".join(f"{look.symbol} {look.word}" for look in looks)
    print_lines(
        console, [*lines, *wrapped(Text(f"  {legend}", style="dim"), console.width, console)]
    )
    if command := where_lost(recording, table):
        print_lines(console, [Text.assemble(("  why: ", "dim"), plain(command, console))])
    print_lines(console, [Text()])


def _cells(recording: Recording, table: TrainingTable, console: Console) -> list[list[Text]]:
    """Return by row the cells, dim where nothing is wrong."""
    found = []
    for row in table.rows[:_MOST_ROWS]:
        words = [plain(cell_words(cell, row, table, recording), console) for cell in row.cells]
        is_fine = is_trained(row) or row.cells[0].state is CellState.FROZEN
        found.append([])
        for cell, said in zip(row.cells, words, strict=True):
            look = CELL_STATES[cell.state]
            is_shown = cell.state in _GRAVE and (not is_fine or cell.state is CellState.TRAINS)
            style = look.terminal if is_shown else "dim" if is_fine else ""
            found[-1].append(Text.assemble((f"{look.symbol} ", style), (said, "dim" * is_fine)))
    return found


def _more(table: TrainingTable) -> list[Text]:
    left = len(table.rows) - _MOST_ROWS
    return [Text(f"  {ELLIPSIS} {counted(left, 'more row')}", style="dim")] if left > 0 else []


def _wide(recording: Recording, table: TrainingTable, console: Console) -> list[Text]:
    cells = _cells(recording, table, console)
    rows = [
        [
            Text("module"),
            Text("parameters"),
            *(Text(loss_words(each, table)) for each in table.losses),
        ]
    ]
    counts = [f"{len(row.parameters):,}" for row in table.rows[:_MOST_ROWS]]
    sizes = [f"{sum(row.sizes):,}" for row in table.rows[:_MOST_ROWS]]
    first, second = max(map(len, counts)), max(map(len, sizes))
    for row, own, count, size in zip(table.rows, cells, counts, sizes, strict=False):
        name = Text(plain(row.module, console), style="" if is_trained(row) else "bold")
        rows.append([name, Text(f"{count:>{first}}, {size:>{second}}"), *own])
    widths = [max(each.cell_len for each in column) for column in zip(*rows, strict=True)]
    lines = []
    for row_of in rows:
        padded = (
            Text.assemble(each, " " * (width - each.cell_len + 2))
            for each, width in zip(row_of, widths, strict=True)
        )
        lines.append(Text.assemble("  ", *padded))
        lines[-1].rstrip()
    return [*lines, *_more(table)]


def _narrow(recording: Recording, table: TrainingTable, console: Console) -> list[Text]:
    calls = [plain(loss_words(each, table), console) for each in table.losses]
    width = max(map(cell_len, calls))
    lines = []
    for row, own in zip(table.rows, _cells(recording, table, console), strict=False):
        name = plain(row.module, console)
        sizes = f"{counted(len(row.parameters), 'parameter')}, {counted(sum(row.sizes), 'number')}"
        lines += wrapped(Text.assemble((name, "bold"), f"  {sizes}"), console.width, console)
        for call, cell, shown in zip(calls, row.cells, own, strict=True):
            words = Text(whole_cell(cell, shown.plain[2:]), style=shown.style)
            lead = Text.assemble(f"  {call}{' ' * (width - cell_len(call))}  ", shown[:2])
            first, *rest = wrapped(words, max(console.width - lead.cell_len, 12), console)
            lines.append(Text.assemble(lead, first))
            lines += [Text.assemble(" " * lead.cell_len, each) for each in rest]
    return [*lines, *_more(table)]
