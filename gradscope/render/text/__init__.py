"""Text for people: what a terminal can show of any text, lines that fit, and places in source code
as a compiler shows them.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gradscope.formatting import Sources, escaped, line_at, source_lines, visible
from gradscope.model import Site
from gradscope.render.wording import opened_as

TAB = 4  # a tab is drawn up to the next multiple of this many cells

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


def console_in_memory(width: int, **options: Any) -> SafeConsole:
    """Return a console that writes into memory, not what a notebook would display, and has every
    sign; without options, it has no colour.
    """
    options = {"color_system": None, "force_terminal": False, **options}
    return SafeConsole(
        file=io.StringIO(), width=width, force_jupyter=False, legacy_windows=False, **options
    )


def written_on(console: Console) -> str:
    """Return what was printed on a console in memory."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


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
    return Segment(text).split_cells(start)[1].split_cells(width)[0].text


def shorten(text: str, width: int) -> str:
    """Return drawn text in at most ``width`` cells, its end cut off if need be."""
    if cell_len(text) <= width:
        return text
    return cut(text, 0, max(width - cell_len(ELLIPSIS), 0)) + ELLIPSIS


def tail(text: str, width: int) -> str:
    """Return the end of drawn text, in at most ``width`` cells: a path's end says more."""
    over = cell_len(text) - width
    return text if over <= 0 else ELLIPSIS + cut(text, over + cell_len(ELLIPSIS), width)


def place_of(site: Site | None, console: Console) -> str:
    """Return ``train.py:42``; nothing for an unknown site."""
    return "" if site is None else plain(opened_as(site), console)


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


def print_table(table: Table, console: Console) -> None:
    """Print a table two cells in, without the spaces that fill its last column."""
    for line in console.render_lines(Padding.indent(table, 2), pad=False):
        shown = Text.assemble(*((part.text, part.style or "") for part in line))
        shown.rstrip()
        console.print(shown, soft_wrap=True)


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
    further = (Text.assemble(" " * indent, part) for part in rest)
    print_lines(console, [Text.assemble(lead, first), *further])


def print_labelled(word: str, style: str, message: str, console: Console) -> None:
    """Print a message after a coloured word and a colon."""
    print_message(Text.assemble((word, style), ": "), message, console)


def show_progress(doing: str, stream: IO[str]) -> None:
    """Show on a terminal what is done after the program's end; the next line takes its place."""
    if _obeys(stream):
        begin_line(stream)
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns or 80
            stream.write(f"{cut(doing, 0, columns - 1)}\r")  # a second line would stay
            stream.flush()


def begin_line(stream: IO[str]) -> None:
    """Have a terminal's cursor at the begin of a line, below what the program may have left there.

    As shells do before a prompt: as many spaces as a line has end at the end of an empty line, and
    go on to the next after a progress bar, as of tqdm. Nobody can be asked for the column. Where
    the width is not known either, only what stands behind the cursor is erased: our progress does.
    """
    if _obeys(stream):
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns
            stream.write(f"{'':{columns}}\r" if columns else "\x1b[K")
            stream.flush()


def _obeys(stream: IO[str]) -> bool:
    """Return whether a stream is a terminal that moves its cursor; one that is closed is none."""
    with suppress(ValueError):
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    return False


_NARROWEST_LABEL = 24  # cells for a label below its carets: with fewer it starts at the left


def source_line(site: Site, sources: Sources) -> str | None:
    """Return the line of a site, None if it is missing or blank."""
    return line_at(source_lines(site.file, sources), site.line).rstrip() or None


def location(site: Site, console: Console) -> str:
    """Return ``train.py:42:9``, never shortened, so that a terminal can open it; or a cell."""
    return plain(opened_as(site, f":{site.column}"), console)


def gutter_width(*sites: Site | None) -> int:
    """Return the width of the largest line number of some sites."""
    return max((len(str(site.line)) for site in sites if site is not None), default=1)


def pointed(
    site: Site, label: str, console: Console, sources: Sources, *, style: str, gutter: int
) -> list[Text]:
    """Return the place of a finding, its line, and carets with a label under it.

    Without the source, return the place and the label alone.
    """
    where = Text.assemble((" " * gutter + "--> ", "dim"), (location(site, console), "bold"))
    if site.function != "<module>":
        where.append(f" in {plain(site.function, console)}")
    line = source_line(site, sources)
    if line is None:
        return [where, *_labelled(0, 0, label, console, style, gutter)]
    room = console.width - gutter - 3
    start, end = _span(site, line)
    shown, cells = drawn(line, console)
    shown, start, end = _clipped(shown, cells[start], cells[end], room)
    lines = [where, _bar(Text(), gutter), _bar(Text(shown), gutter, str(site.line))]
    lines += _labelled(start, end, label, console, style, gutter)
    if site.end_line > site.line:
        lines.append(Text(ELLIPSIS.rjust(gutter), style="dim"))
    return lines


def mentioned(site: Site, console: Console, sources: Sources, *, gutter: int) -> list[Text]:
    """Return a related place and its line, beside it if there is room, else below."""
    where = Text.assemble((" " * gutter + "--> ", "dim"), location(site, console))
    line = source_line(site, sources)
    if line is None:
        return [where]
    shown = drawn(line.strip(), console)[0]
    if where.cell_len + 3 + cell_len(shown) <= console.width:
        return [where.append(f"   {shown}")]
    indent = " " * (gutter + 4)
    return [where, Text(indent + shorten(shown, console.width - len(indent)))]


def _span(site: Site, line: str) -> tuple[int, int]:
    """Return the range of characters to underline, from 0; by default all code of the line."""
    code = len(line) - len(line.lstrip())
    start = site.column - 1
    if not code < start < len(line):
        start = code
    on_this_line = site.end_line in (0, site.line) and start < site.end_column - 1 <= len(line)
    return start, site.end_column - 1 if on_this_line else len(line)


def _clipped(shown: str, start: int, end: int, room: int) -> tuple[str, int, int]:
    """Return a drawn line cut to ``room`` cells around ``start`` to ``end``, and these two."""
    width, mark = cell_len(shown), cell_len(ELLIPSIS)
    if width <= room:
        return shown, start, end
    offset = 0
    if end > room - mark:
        spare = max(room - 2 * mark - (end - start), 0)
        offset = min(start - min(spare // 3, start), width - (room - mark))
    left = ELLIPSIS if offset else ""
    right = ELLIPSIS if width - offset > room - len(left) else ""
    text = left + cut(shown, offset, room - len(left) - len(right)) + right
    return text, start - offset + len(left), min(end - offset + len(left), room - len(right))


def _labelled(
    start: int, end: int, label: str, console: Console, style: str, gutter: int
) -> list[Text]:
    """Return carets and label on one line, or the label below them, or below the line's start."""
    room = console.width - gutter - 3
    carets = Text(" " * start + "^" * (end - start), style=style)
    words = prose(label, console, style)
    if not end:
        return [_bar(part, gutter) for part in wrapped(words, room, console)]
    if not label:
        return [_bar(carets, gutter)]
    if end + 1 + words.cell_len <= room:
        return [_bar(Text.assemble(carets, " ", words), gutter)]
    indent = start if room - start >= min(_NARROWEST_LABEL, words.cell_len) else 0
    below = wrapped(words, room - indent, console)
    indented = (Text.assemble(" " * indent, part) for part in below)
    return [_bar(part, gutter) for part in (carets, *indented)]


def _bar(content: Text, gutter: int, number: str = "") -> Text:
    """Return one line of a snippet: the line's number or nothing, a bar, the content."""
    return Text.assemble((f"{number:>{gutter}} |", "dim"), " " if content.plain else "", content)
