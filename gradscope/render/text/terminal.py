"""What a terminal can show: escapes for hostile text, cell widths, lines that fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from gradscope.model import Site
from gradscope.render.prefixes import common_length
from gradscope.units import escaped, short_path, visible

TAB = 4
"""A tab is drawn up to the next multiple of this many cells."""

cell_len("…")  # rich imports its widths with the first text beyond ASCII: now, not amid the program

ELLIPSIS = "…"


class SafeConsole(Console):
    """A console that shows as an escape what a terminal would obey, wherever a text comes from.

    What rich adds, as colours, comes after this.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return what is printed in pieces, each without what a terminal would obey."""
        for piece in super().render(renderable, options):
            shown = piece.text if piece.control else escaped(piece.text, self.encoding, keep="\n")
            yield piece if shown == piece.text else piece._replace(text=shown)


def plain(text: str, console: Console) -> str:
    """Return foreign text on one line, unable to move the cursor or change colours."""
    return escaped(text, console.encoding)


def drawn(line: str, console: Console) -> tuple[str, list[int]]:
    """Return a source line with its tabs expanded, and the cell at which each character begins.

    The list has one more entry than the line has characters: the cell after the last.
    """
    parts: list[str] = []
    starts, cell = [], 0
    for char in line:
        part = " " * (TAB - cell % TAB) if char == "\t" else visible(char, console.encoding)
        starts.append(cell)
        parts.append(part)
        cell += cell_len(part)
    return "".join(parts), [*starts, cell]


def cut(text: str, start: int, width: int) -> str:
    """Return ``width`` cells from ``start`` on; half a wide character becomes a space."""
    kept, cell = [], 0
    for char in text:
        size = cell_len(char)
        if start <= cell and cell + size <= start + width:
            kept.append(char)
        elif cell < start + width and cell + size > start:
            kept.append(" " * (min(cell + size, start + width) - max(cell, start)))
        cell += size
        if cell > start + width:
            break
    return "".join(kept)


def shorten(text: str, width: int) -> str:
    """Return drawn text in at most ``width`` cells, its end cut off if need be."""
    if cell_len(text) <= width:
        return text
    return cut(text, 0, max(width - cell_len(ELLIPSIS), 0)) + ELLIPSIS


def tail(text: str, width: int) -> str:
    """Return the end of drawn text, in at most ``width`` cells: a path's end says more."""
    over = cell_len(text) - width
    return text if over <= 0 else ELLIPSIS + cut(text, over + cell_len(ELLIPSIS), width)


def distinct(names: Sequence[str], width: int) -> list[str]:
    """Return drawn names in at most ``width`` cells, if possible such that no two different
    ones look alike: their ends, or after the part in which they differ as much of that as fits.
    """
    shown = {name: tail(name, width) for name in names}
    alike: dict[str, list[list[str]]] = {}
    for name, end in shown.items():
        alike.setdefault(end, []).append(re.findall(r"[./\\]?[^./\\]*", name))
    for group in alike.values():
        first = common_length(group)
        last = common_length([parts[:first:-1] for parts in group])
        for parts in group if len(group) > 1 else ():
            name = "".join(parts)
            differs = "".join(parts[max(first - 1, 0) : len(parts) - last])
            lead = f"{ELLIPSIS}{differs.lstrip('./')}" if first > 1 else differs
            room = width - cell_len(lead) - cell_len(ELLIPSIS)
            if room >= 0:
                end = cut(name, cell_len(name) - room, room)
                shown[name] = f"{lead}{ELLIPSIS}{end}"
    return [shown[name] for name in names]


def place_of(site: Site | None, console: Console) -> str:
    """Return ``train.py:42``; nothing for an unknown site."""
    return "" if site is None else plain(opened_as(site), console)


def opened_as(site: Site, column: str = "") -> str:
    """Return the path and line of a site, so that a terminal can open it; or a notebook's cell."""
    return site.place if site.cell else f"{short_path(site.file)}:{site.line}{column}"


def prose(text: str, console: Console, style: str = "") -> Text:
    """Return a message with the code in its backticks in bold."""
    shown = Text(plain(text, console), style=style)
    for quoted in re.finditer(r"`[^`]+`", shown.plain):
        shown.stylize("bold", *quoted.span())
    return shown


def wrapped(text: Text, width: int, console: Console) -> list[Text]:
    """Return styled text in lines of at most ``width`` cells, without trailing spaces."""
    lines = list(text.wrap(console, max(width, 1), overflow="fold"))
    for line in lines:
        line.rstrip()
    return lines or [Text()]


def print_lines(console: Console, lines: list[Text]) -> None:
    """Print lines as they are: a path may be wider than the terminal."""
    for line in lines:
        console.print(line, soft_wrap=True)


def write_text(text: str, console: Console) -> None:
    """Write what is for machines as it is, in characters that the console's encoding has."""
    with suppress(LookupError):  # the program may have put in any stream
        text = text.encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.file.write(text)
    console.file.flush()


def print_message(lead: Text, message: str, console: Console, style: str = "") -> None:
    """Print a message after its lead word, wrapped, further lines indented."""
    indent = min(lead.cell_len, console.width // 3)
    first, *rest = wrapped(prose(message, console, style), console.width - lead.cell_len, console)
    print_lines(
        console, [Text.assemble(lead, first), *(Text.assemble(" " * indent, part) for part in rest)]
    )
