"""The two tables of a report: backward calls, a row for each kind of call; and who trains what,
modules by losses, or a block a module where it is narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.formatting import counted, gathered, listed, nbytes, short_path
from gradscope.model import (
    BackwardCall,
    CellState,
    Recording,
    Site,
    TrainingCell,
    TrainingRow,
    TrainingTable,
)
from gradscope.render.text import ELLIPSIS, place_of, plain, print_lines, tail, wrapped
from gradscope.render.theme import CELL_STATES
from gradscope.render.wording import opened_as

# Rows of a table, and how many of the calls' are the last: the first rows show what is new, the
# last ones what grows. The JSON report has all.
MOST_ROWS, _LAST_ROWS = 40, 10
_MARGIN, _GAP = 2, 2  # cells before the table, and between its columns
_NARROWEST_PLACE = 16  # cells for `…/train.py:123`: else a column of figures is left out
_MOST_INPUTS = 3  # of `inputs=[…]`, which are named: more are counted


def side_by_side(calls: Sequence[BackwardCall]) -> list[BackwardCall]:
    """Return the rows of calls; those that several processes made alike are one."""
    alike = gathered(calls, lambda row: (row.number, row.last_number, _shared(row)))
    processes = len({call.process for call in calls})
    return [
        replace(made[0], process="" if len(made) == processes else listed(c.process for c in made))
        for made in alike.values()
    ]


def _shared(call: BackwardCall) -> Hashable:
    """Return what calls must share to be one row: all that the row shows but their numbers."""
    return (
        *(call.kind, call.site, call.roots, call.retain_graph, call.create_graph, call.inputs),
        *(call.nodes_run, call.saved_bytes, call.freed_bytes, call.retained_bytes),
        *(call.parent is None, call.thread, call.exception),
    )


def calls_table(
    calls: Sequence[BackwardCall], console: Console, *, hooks: bool = True
) -> list[Text]:
    """Return the table, two lines a row: number, place, figures; how often, and the call as code.

    A narrow terminal has no column of saved bytes, as what was saved was freed or retained. Without
    ``hooks`` no bytes are known.
    """
    rows = side_by_side(calls)
    more = len(rows) - MOST_ROWS
    if more > 0:
        rows = [*rows[: MOST_ROWS - _LAST_ROWS], *rows[-_LAST_ROWS:]]
    numbers, *columns = _columns(rows)[: None if hooks else 2]
    left = max(map(cell_len, numbers))
    room = console.width - _MARGIN - left - _GAP
    figures = [[f"{cell:>{_GAP + max(map(len, column))}}" for cell in column] for column in columns]
    for dispensable in (1, 0)[not hooks :]:  # the bytes saved, then the nodes run
        if room - sum(len(column[0]) for column in figures) < _NARROWEST_PLACE:
            del figures[dispensable]

    space = max(room - sum(len(column[0]) for column in figures), 0)
    places = [place_of(call.site, console) or "unknown line" for call in rows]
    places = [tail(place, space) for place in ("where", *places)]

    def line(index: int) -> str:
        place = places[index] + " " * (space - cell_len(places[index]))
        return "".join([begun(numbers[index]), place, *(column[index] for column in figures)])

    def begun(first: str) -> str:
        return f"{'':{_MARGIN}}{first:<{left}}{'':{_GAP}}"

    table = [Text(line(0), style="dim")]
    for index, call in enumerate(rows, 1):
        if more > 0 and index == MOST_ROWS - _LAST_ROWS + 1:
            note = f"{ELLIPSIS} {counted(more, 'more row')}, see --format json"
            table.append(Text(begun("") + note, style="dim"))
        table.append(Text(line(index)))
        times = f"\N{MULTIPLICATION SIGN}{call.count:,}" if call.count > 1 else ""
        for part in wrapped(_statement(call, console), room, console):
            table.append(Text.assemble(begun(times), part))
            times = ""
    return table


def _columns(rows: Sequence[BackwardCall]) -> list[list[str]]:
    """Return all columns but the place, each with its header first."""
    more = [f"\N{EN DASH}{call.last_number:,}" if call.count > 1 else "" for call in rows]
    numbers = [f"{call.number:,}{last}" for call, last in zip(rows, more, strict=True)]
    return [
        ["call", *numbers],
        ["nodes run", *(f"{call.nodes_run:,}" for call in rows)],
        ["saved", *(nbytes(call.saved_bytes) for call in rows)],
        ["freed", *(nbytes(call.freed_bytes) for call in rows)],
        ["retained", *(nbytes(call.retained_bytes) for call in rows)],
    ]


def _statement(call: BackwardCall, console: Console) -> Text:
    """Return the call as code, and where it ran and what it raised if that is special."""
    shown = Text(plain(as_code(call), console))
    if call.parent is not None:
        around = f"call {call.parent:,}" if call.count == 1 else "another call"
        shown.append(f" (inside {around})", style="dim")
    if call.thread != "MainThread":
        shown.append(f" (thread {plain(call.thread, console)})", style="dim")
    if call.process:
        shown.append(f" ({plain(call.process, console)})", style="dim")
    if call.exception:
        shown.append(f" raised {plain(call.exception.partition(':')[0], console)}", style="red")
    return shown


def as_code(call: BackwardCall) -> str:
    """Return ``loss.backward(retain_graph=True)`` or ``backward() of f32[32, 256]``."""
    names = [root.name for root in call.roots if root.name]
    known = names if len(names) == len(call.roots) else []
    several = f"[{', '.join(known)}]" if len(known) > 1 else "".join(known)
    inputs = flag = ""
    if call.inputs is not None:
        few = len(call.inputs) <= _MOST_INPUTS
        inputs = f"[{', '.join(call.inputs)}]" if few else f"{len(call.inputs):,} inputs"
    if call.create_graph or call.retain_graph:  # the first implies the other
        flag = f"{'create' if call.create_graph else 'retain'}_graph=True"
    if call.kind == "grad":
        function, arguments = "autograd.grad", (several, inputs, flag)
    else:
        inputs = inputs and f"inputs={inputs}"
        method = len(known) == 1
        function = f"{several}.backward" if method else "backward"
        arguments = ("" if method else several, inputs, flag)
    code = f"{function}({', '.join(filter(None, arguments))})"
    if known or not call.roots:
        return code
    roots = call.roots[0].label if len(call.roots) == 1 else f"{len(call.roots):,} roots"
    return f"{code} of {roots}"


# who trains what

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
    if (left := len(table.rows) - MOST_ROWS) > 0:
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
    shown = table.rows[:MOST_ROWS]
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
    for row in table.rows[:MOST_ROWS]:
        head = Text.assemble((plain(row.module, console), "bold"), f"  {words.sizes(row)}")
        lines += wrapped(head, console.width, console)
        for call, cell, sign in zip(calls, row.cells, _signs(row), strict=True):
            lead = Text.assemble(f"  {call}{' ' * (width - cell_len(call))}  ", sign, " ")
            said = Text(plain(words.of(cell, row), console))
            first, *rest = wrapped(said, max(console.width - lead.cell_len, 12), console)
            lines += [lead + first, *(Text(" " * lead.cell_len) + each for each in rest)]
    return lines
