"""Prints who trains what: a table of modules by losses, or a block a module where it is narrow."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.model import CellState, Recording, Site, TrainingCell, TrainingRow, TrainingTable
from gradscope.render.text.terminal import ELLIPSIS, plain, print_lines, wrapped
from gradscope.render.theme import CELL_STATES
from gradscope.render.wording import opened_as
from gradscope.units import counted, short_path

# Rows that are printed, each for all modules with the same cells; the JSON report has all.
_MOST_ROWS = 40
_GRAVE = CellState.CUT, CellState.NEVER_USED
_ALONE = {CellState.TRAINS: "trains, ", CellState.CUT: "cut at "}
_NOTHING = "no optimizer has stepped after a backward call, so nothing is known of who trains what"


class Words:
    """The words of the table of a recording, for people and for the page."""

    def __init__(self, recording: Recording, table: TrainingTable) -> None:
        is_script = not any(loss.site and loss.site.cell for loss in table.losses)
        self._table, self._script = table, recording.header.script * is_script
        self._file = next((loss.site.file for loss in table.losses if loss.site), "")
        found = (each for each in recording.findings if each.code == "GS503")
        self._told = {name for each in found for name in each.parameters}
        steps = sorted({each.steps for each in table.optimizers})
        times = f"{steps[0]:,} to {steps[-1]:,} steps"
        times = counted(steps[0], "step") if len(steps) == 1 else times
        each = " of each optimizer" if len(table.optimizers) > 1 else ""
        whose = (each for each in recording.processes if each.summary.training.table is not None)
        who = "".join(f", {each.name}" for each in [*whose][:1])
        self.title = ", ".join(filter(None, (short_path(self._script), f"{times}{each}{who}")))
        names = (f"{loss.name}.backward()" if loss.name else "backward()" for loss in table.losses)
        lines = (self._line(loss.site, ":") for loss in table.losses)
        self.losses = [f"{name} {line}" for name, line in zip(names, lines, strict=True)]

    def _line(self, site: Site | None, word: str = "line ") -> str:
        """Return the line of a site, with its file where that is not the one of the first loss."""
        if site is None or site.cell or site.file != self._file:
            return "" if site is None else opened_as(site)
        return f"{word}{site.line}"

    def of(self, cell: TrainingCell, row: TrainingRow, *, alone: bool = True) -> str:
        """Return what follows the symbol; what trains and what is cut is said of one ``alone``."""
        lead = _ALONE.get(cell.state, "") if alone else ""
        match cell.state:
            case CellState.TRAINS if cell.optimizer is None:
                return "changed by no optimizer"
            case CellState.TRAINS:
                by = self._table.optimizers[cell.optimizer or 0]
                late = f" from step {cell.first_step:,} on" if cell.first_step else ""
                return f"{lead}by {by.name or by.kind}{late}"
            case CellState.CUT:
                return lead + ", ".join(filter(None, (self._line(cell.site), cell.operation)))
            case CellState.FROZEN if cell.site is not None:
                return f"frozen at {self._line(cell.site)}"
            case CellState.NEVER_USED if self._told & {*row.parameters}:
                return "never used, GS503"
        return CELL_STATES[cell.state].word

    def sizes(self, row: TrainingRow) -> str:
        """Return how many parameters a row is about, and how many numbers."""
        count, numbers = len(row.parameters), sum(row.sizes)
        return f"{counted(count, 'parameter')}, {counted(numbers, 'number')}"

    @property
    def states(self) -> list[CellState]:
        """The states that cells have."""
        met = {cell.state for row in self._table.rows for cell in row.cells}
        return [state for state in CellState if state in met]

    @property
    def command(self) -> str:
        """What says why a gradient does not come; empty where that is known."""
        lost = CellState.NO_GRADIENT
        rows = [r for r in self._table.rows if any(cell.state is lost for cell in r.cells)]
        if not rows or not self._script.endswith(".py"):
            return ""
        row = min(rows, key=lambda each: each.is_fine)
        name = row.parameters[0] if "*" in row.module else row.module
        return f"gradscope why {short_path(self._script)} {name}"


def is_telling(recording: Recording) -> bool:
    """Return whether a report has the table: there are two losses, or what is not trained."""
    table = recording.summary.training.table
    codes = {finding.code for finding in recording.findings if finding.counts}
    return table is not None and (len(table.losses) > 1 or bool({"GS502", "GS503"} & codes))


def print_trains(recording: Recording, console: Console) -> None:
    """Print the table of a recording."""
    table = recording.summary.training.table
    if table is None:
        print_lines(console, wrapped(Text(_NOTHING), console.width, console))
        return
    words = Words(recording, table)
    title = f": {plain(words.title, console)}"
    lines = wrapped(Text.assemble(("who trains what", "bold"), title), console.width, console)
    shown = _wide(table, words, console)
    is_wide = max(line.cell_len for line in shown) <= console.width
    lines += shown if is_wide else _narrow(table, words, console)
    if (left := len(table.rows) - _MOST_ROWS) > 0:
        lines.append(Text(f"  {ELLIPSIS} {counted(left, 'more row')}", style="dim"))
    if is_wide:  # else the words stand in the cells
        looks = (CELL_STATES[state] for state in words.states)
        legend = Text("  ".join(f"{look.symbol} {look.word}" for look in looks), "dim")
        lines += [Text("  ") + each for each in wrapped(legend, console.width - 2, console)]
    if words.command:
        lines.append(Text.assemble(("  why: ", "dim"), plain(words.command, console)))
    print_lines(console, [*lines, Text()])


def _signs(row: TrainingRow) -> list[Text]:
    """Return the symbols of a row; those of a cut only stand out where no loss trains it."""
    looks = ((cell.state, CELL_STATES[cell.state]) for cell in row.cells)
    return [
        Text(look.symbol, "dim" if row.is_fine and state in _GRAVE else look.terminal)
        for state, look in looks
    ]


def _wide(table: TrainingTable, words: Words, console: Console) -> list[Text]:
    shown = table.rows[:_MOST_ROWS]
    counts = [(f"{len(row.parameters):,}", f"{sum(row.sizes):,}") for row in shown]
    most, largest = (max(map(len, column)) for column in zip(*counts, strict=True))
    heads = ("module", "parameters", *(plain(loss, console) for loss in words.losses))
    lines = [[*map(Text, heads)]]
    for row, (count, size) in zip(shown, counts, strict=True):
        style = "dim" * row.is_fine
        said = (plain(words.of(cell, row, alone=False), console) for cell in row.cells)
        cells = (
            Text.assemble(sign, " ", (each, style))
            for sign, each in zip(_signs(row), said, strict=True)
        )
        sizes = Text(f"{count:>{most}}, {size:>{largest}}", style)
        lines.append([Text(plain(row.module, console)), sizes, *cells])
    widths = [max(each.cell_len for each in column) for column in zip(*lines, strict=True)]
    for line in lines:
        for each, width in zip(line[:-1], widths, strict=False):
            each.pad_right(width - each.cell_len)
    return [Text("  ") + Text("  ").join(line) for line in lines]


def _narrow(table: TrainingTable, words: Words, console: Console) -> list[Text]:
    calls = [plain(loss, console) for loss in words.losses]
    width = max(map(cell_len, calls))
    lines = []
    for row in table.rows[:_MOST_ROWS]:
        head = Text.assemble((plain(row.module, console), "bold"), f"  {words.sizes(row)}")
        lines += wrapped(head, console.width, console)
        for call, cell, sign in zip(calls, row.cells, _signs(row), strict=True):
            lead = Text.assemble(f"  {call}{' ' * (width - cell_len(call))}  ", sign, " ")
            said = Text(plain(words.of(cell, row), console))
            first, *rest = wrapped(said, max(console.width - lead.cell_len, 12), console)
            lines += [lead + first, *(Text(" " * lead.cell_len) + each for each in rest)]
    return lines
