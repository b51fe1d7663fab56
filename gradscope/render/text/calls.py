"""The table of backward calls: one row for each kind of call, as the recording has folded them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.model import BackwardCall
from gradscope.render.text.terminal import ELLIPSIS, place_of, plain, tail, wrapped
from gradscope.units import counted, gathered, listed, nbytes

# Rows of the table, two lines each, and how many of them are the last: the first rows show what
# is new, the last ones what grows.
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
    numbers, *figures = _columns(rows)[: None if hooks else 2]
    left = max(map(cell_len, numbers))
    room = console.width - _MARGIN - left - _GAP
    for dispensable in (1, 0)[not hooks :]:  # the bytes saved, then the nodes run
        if room - sum(_GAP + max(map(len, column)) for column in figures) < _NARROWEST_PLACE:
            del figures[dispensable]

    space = max(room - sum(_GAP + max(map(len, column)) for column in figures), 0)
    places = [place_of(call.site, console) or "unknown line" for call in rows]
    places = [tail(place, space) for place in ("where", *places)]

    def line(index: int) -> str:
        right = "".join(f"{'':{_GAP}}{c[index]:>{max(map(len, c))}}" for c in figures)
        place = places[index]
        return begun(numbers[index]) + place + " " * max(space - cell_len(place), 0) + right

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
