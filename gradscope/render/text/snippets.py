"""Places in source code as a compiler shows them: the line, its number, carets under the part."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.model import Site
from gradscope.render.text.terminal import ELLIPSIS, cut, drawn, plain, prose, shorten, wrapped
from gradscope.render.wording import opened_as
from gradscope.units import Sources, line_at, source_lines

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
