"""What a terminal can show: escapes for hostile text, cell widths, the signs of its encoding."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.model import Site
from gradscope.units import short_path

TAB = 4
"""A tab is drawn up to the next multiple of this many cells."""

cell_len("…")  # rich imports its widths with the first text beyond ASCII: now, not amid the program

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class Signs:
    """The few signs beyond ASCII that a report uses, and what stands in for them."""

    ellipsis: str = "…"
    arrow: str = "→"
    dash: str = "\N{EN DASH}"
    times: str = "\N{MULTIPLICATION SIGN}"
    bar: str = "\N{FULL BLOCK}"


ASCII = Signs("...", "->", "-", "x", "#")
UNICODE = Signs()


def signs(console: Console) -> Signs:
    """Return the signs that the encoding of this console has."""
    return UNICODE if console.encoding.lower().startswith("utf") else ASCII


def visible(char: str, encoding: str = "utf-8") -> str:
    """Return a character as it can be shown; control and format characters are escaped."""
    if " " <= char <= "~":
        return char
    if char in _ESCAPES:
        return _ESCAPES[char]
    if unicodedata.category(char) not in _HIDDEN and _can_encode(char, encoding):
        return char
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _can_encode(char: str, encoding: str) -> bool:
    try:
        char.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plain(text: str, console: Console) -> str:
    """Return foreign text on one line, unable to move the cursor or change colours."""
    return "".join(visible(char, console.encoding) for char in text)


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


def shorten(text: str, width: int, ellipsis: str) -> str:
    """Return drawn text in at most ``width`` cells, its end cut off if need be."""
    if cell_len(text) <= width:
        return text
    return cut(text, 0, max(width - cell_len(ellipsis), 0)) + ellipsis


def tail(text: str, width: int, ellipsis: str) -> str:
    """Return the end of drawn text, in at most ``width`` cells: a path's end says more."""
    over = cell_len(text) - width
    return text if over <= 0 else ellipsis + cut(text, over + cell_len(ellipsis), width)


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


def print_message(lead: Text, message: str, console: Console, style: str = "") -> None:
    """Print a message after its lead word, wrapped, further lines indented."""
    indent = min(lead.cell_len, console.width // 3)
    first, *rest = wrapped(prose(message, console, style), console.width - lead.cell_len, console)
    print_lines(
        console, [Text.assemble(lead, first), *(Text.assemble(" " * indent, part) for part in rest)]
    )
