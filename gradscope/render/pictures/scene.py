"""Draws a placed picture as SVG: every other image is made of that."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from fontTools.ttLib import TTFont

from gradscope.model import Severity
from gradscope.render.pictures.picture import (
    TIMES,
    Box,
    BoxKind,
    Group,
    GroupKind,
    LinkKind,
    Picture,
    Placed,
    Point,
    Rect,
    Row,
)
from gradscope.render.theme import LIGHT, NODE_STATES, SAVED_STATES, SEVERITIES, Look, Tone
from gradscope.units import escaped

FAMILY = "Liberation Sans"
"""Has the widths of Helvetica and Arial, which every viewer and graphviz know."""

_FONTS = f"'{FAMILY}', Arial, Helvetica, sans-serif"
FILE = files("gradscope.render.pictures") / "fonts" / "LiberationSans-Regular.ttf"


@dataclass(frozen=True, slots=True)
class Font:
    """Advance widths of characters, in 1/``units`` of the font size."""

    units: int
    widths: dict[int, int]

    def width(self, text: str, size: float) -> float:
        """Return the width of a text in points; a missing character counts as a full square."""
        return sum(self.widths.get(ord(ch), self.units) for ch in text) * size / self.units


@cache
def font() -> Font:
    """Return the bundled font, parsed once."""
    with FILE.open("rb") as file, TTFont(file) as face:
        advances = face["hmtx"].metrics
        widths = {code: advances[glyph][0] for code, glyph in face.getBestCmap().items()}
        return Font(face["head"].unitsPerEm, widths)


TITLE, TEXT, SMALL = 13.0, 11.0, 10.0
_PAD, _STRIP, _HEAD, _ROW = 9.0, 19.0, 22.0, 16.0
_MARK = 15.0
_MARGIN = 18.0
_LINE = "      "
"""Stands in the legend for a sample of a line of this width."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawn picture: an SVG document, its size and its title."""

    svg: str
    width: float
    height: float
    title: str


def size_of(box: Box) -> tuple[float, float]:
    """Width and height that the texts of a box need."""
    width = font().width
    lines = [
        _MARK + width(box.title, TITLE) + (18 + width(box.note, SMALL) if box.note else 0),
        _MARK + width(box.caption, SMALL),
    ]
    lines += [width(strip, TEXT) for strip in (box.root, box.alarm)]
    lines += [
        _MARK + width(row.text, TEXT) + (16 + width(row.note, SMALL) if row.note else 0)
        for row in box.rows
    ]
    rows = [row for row in box.rows if row.text]
    height = _HEAD + _STRIP * (bool(box.root) + bool(box.alarm)) + (13 if box.caption else 0)
    height += (_ROW * len(rows) + 6) if rows else 0
    return round(max(90.0, *lines) + 2 * _PAD, 1), round(height + 4, 1)


def draw_scene(placed: Placed) -> Scene:
    """Title, totals, legend and notes above the picture."""
    return _Painter().scene(placed)


class _Painter:
    """Collects the elements in painting order, and how far its texts reach to the right."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.right = 0.0

    def rect(self, rect: Rect, radius: float, **look: Any) -> None:
        corner = f' rx="{_n(radius)}"' if radius else ""
        size = f'width="{_n(rect.width)}" height="{_n(rect.height)}"'
        place = f'x="{_n(rect.x)}" y="{_n(rect.y)}"'
        self.elements.append(f"<rect {place} {size}{corner}{_paint(**look)}/>")

    def path(self, points: Sequence[Point], *, straight: bool = False, **look: Any) -> None:
        """Draw through points; if not straight, each three after the first make a curve."""
        start, *rest = (f"{_n(x)},{_n(y)}" for x, y in points)
        way = f"M{start}{'L' if straight else 'C'}{' '.join(rest)}{'Z' if 'fill' in look else ''}"
        self.elements.append(f'<path d="{way}"{_paint(**look)}/>')

    def text(
        self, x: float, y: float, text: str, size: float, colour: str, *, end: bool = False
    ) -> None:
        """Write a line; ``y`` is its base line, ``end`` sets it flush right at ``x``."""
        if not text:
            return
        if not end:
            self.right = max(self.right, x + font().width(text, size))
        anchor = ' text-anchor="end"' if end else ""
        place = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"'
        paint = f'fill="{colour}"{anchor} xml:space="preserve"'
        self.elements.append(f"<text {place} {paint}>{_safe(text)}</text>")

    def scene(self, placed: Placed) -> Scene:
        picture = placed.picture
        measure = font().width
        least = max(measure(picture.title, 16), measure(picture.subtitle, TEXT), 420.0)
        width = max(placed.width, least)
        self.text(_MARGIN, 30, picture.title, 16, LIGHT.text)
        self.text(_MARGIN, 48, picture.subtitle, TEXT, LIGHT.muted)
        top = self.legend(picture, width, 66)
        warning = SEVERITIES[Severity.WARNING].light.ink
        for note in picture.notes:
            for line in textwrap.wrap(f"note: {note}", round(width / TEXT * 2)):
                self.text(_MARGIN, top, line, TEXT, warning)
                top += 16
        self.boxes(placed, _MARGIN + (width - placed.width) / 2, top)
        # The layout makes no room for the counts that stand beside links.
        w = round(max(width + _MARGIN, self.right) + _MARGIN)
        h = round(top + placed.height + _MARGIN)
        head = [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w:g}" height="{h:g}" '
            f'viewBox="0 0 {w:g} {h:g}" font-family="{_FONTS}" role="img">',
            f"<title>{_safe(picture.title)}</title>",
            f'<rect width="{w:g}" height="{h:g}" fill="{LIGHT.background}"/>',
        ]
        return Scene("\n".join([*head, *self.elements, "</svg>\n"]), w, h, picture.title)

    def legend(self, picture: Picture, width: float, top: float) -> float:
        """Draw one entry per state and kind of link there is; return where the legend ends."""
        x, y = _MARGIN, top
        for word, meaning, look in _legend_entries(picture):
            long = font().width(f"{word}  {meaning}", SMALL) + (_MARK if look else 0) + 22
            if x > _MARGIN and x + long > width + _MARGIN + 22:
                x, y = _MARGIN, y + 17
            left = x
            if look is not None:
                tone = look.light
                mark = Rect(x, y - 10, 13, 13)
                self.rect(mark, 3, fill=tone.fill, stroke=tone.ink, dash=look.dash)
                self.symbol(look.symbol, x + 6.5, y - 3.5, tone.ink)
                left += _MARK + 3
            if word == _LINE:
                sample = ((left, y - 3.5), (left + font().width(word, SMALL), y - 3.5))
                self.path(sample, straight=True, stroke=LIGHT.accent, width=2.4)
            else:
                colour = look.light.ink if look else LIGHT.text
                self.text(left, y, word, SMALL, colour)
            left += font().width(word + "  ", SMALL)
            self.text(left, y, meaning, SMALL, LIGHT.muted)
            x += long
        return y + 24

    def boxes(self, placed: Placed, dx: float, dy: float) -> None:
        picture = placed.picture
        frames = {n: rect.moved(dx, dy) for n, rect in placed.frames.items()}
        groups = [group for group in picture.groups if group.id in frames]
        for group in groups:
            shared = group.kind is GroupKind.SHARED
            self.rect(
                frames[group.id],
                9,
                stroke=LIGHT.accent if shared else LIGHT.rule,
                width=2.2 if shared else 1,
                dash=() if shared else (5, 4),
                fill=self.wash(group.kind),
            )
        for link, route in zip(picture.links, placed.routes, strict=True):
            self.link(tuple((x + dx, y + dy) for x, y in route), link.kind, link.count)
        for group in groups:
            self.frame_title(frames[group.id], group)
        for box, rect in zip(picture.boxes, placed.boxes, strict=True):
            self.box(box, rect.moved(dx, dy))

    def frame_title(self, rect: Rect, group: Group) -> None:
        """Draw the title over the links, on an opaque ground, so that none runs through it."""
        ground = Rect(rect.x + 5, rect.y + 5, font().width(group.title, 12) + 8, 16)
        self.rect(ground, 4, fill=self.wash(group.kind))
        colour = LIGHT.accent if group.kind is GroupKind.SHARED else LIGHT.muted
        self.text(rect.x + 9, rect.y + 17, group.title, 12, colour)

    def wash(self, kind: GroupKind) -> str:
        """Return the fill of a frame, barely apart from the page, so that boxes stand out."""
        return "#f3f8fc" if kind is GroupKind.SHARED else "#fafafa"

    def link(self, route: tuple[Point, ...], kind: LinkKind, count: int) -> None:
        important = kind is not LinkKind.PLAIN
        colour = LIGHT.accent if important else LIGHT.rule
        self.path(route, stroke=colour, width=2.4 if important else 1.1)
        (x0, y0), (x1, y1) = route[-2] if route[-2] != route[-1] else route[-3], route[-1]
        if (x0, y0) == (x1, y1):
            x0, y0 = x1, y1 - 1
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        size = 8.0 if important else 6.5
        bx, by = x1 - ux * size, y1 - uy * size
        half = size * 0.42
        left, right = (bx - uy * half, by + ux * half), (bx + uy * half, by - ux * half)
        self.path(((x1, y1), left, right), straight=True, fill=colour)
        if count > 1:
            mx, my = route[len(route) // 2]
            self.text(mx + 4, my, f"{TIMES}{count:,}", SMALL - 1, LIGHT.muted)

    def box(self, box: Box, rect: Rect) -> None:
        look = NODE_STATES[box.state] if box.state is not None else None
        tone = look.light if look else Tone(LIGHT.muted, LIGHT.background)
        ink, fill = tone.ink, tone.fill
        radius = 10.0 if box.kind is BoxKind.LEAF else 4.0
        dash = look.dash if look else ()
        heavy = 2.2 if look is not None and look.line == "bold" else 1.3
        if box.kind is BoxKind.FOLD:
            self.rect(rect.moved(4, 4), radius, stroke=ink, dash=dash, fill=fill)
        self.rect(rect, radius, stroke=ink, width=heavy, dash=dash, fill=fill)
        y = rect.y
        alarm = SEVERITIES[Severity.ERROR].light.ink
        for strip, colour in ((box.alarm, alarm), (box.root, LIGHT.accent)):
            if strip:
                self.rect(Rect(rect.x, y, rect.width, _STRIP), radius, fill=colour)
                self.text(rect.x + _PAD, y + 13.5, strip, TEXT, LIGHT.background)
                y += _STRIP
        if box.alarm:
            outer = Rect(rect.x - 3, rect.y - 3, rect.width + 6, rect.height + 6)
            self.rect(outer, radius + 2, stroke=alarm, width=2.5)
        left, right = rect.x + _PAD, rect.x + rect.width
        self.text(left + _MARK, y + 16, box.title, TITLE, LIGHT.text)
        self.symbol(look.symbol if look else "→", left + 5, y + 11.5, ink)
        self.text(right - _PAD, y + 16, box.note, SMALL, ink, end=True)
        y += _HEAD
        if box.caption:
            self.text(left + _MARK, y + 7, box.caption, SMALL, LIGHT.muted)
            y += 13
        rows = [row for row in box.rows if row.text]
        if rows:
            self.path(((rect.x, y + 2), (right, y + 2)), straight=True, stroke=ink, width=0.5)
        for row in rows:
            self.row(row, rect, y + 15)
            y += _ROW

    def row(self, row: Row, rect: Rect, y: float) -> None:
        look = SAVED_STATES[row.state] if row.state is not None else None
        ink = LIGHT.muted if look is None or row.muted else look.light.ink
        left = rect.x + _PAD + _MARK
        if look is not None:
            self.symbol(look.symbol, rect.x + _PAD + 5, y - 3.8, ink)
        self.text(left, y, row.text, TEXT, LIGHT.muted if row.muted else LIGHT.text)
        if look is not None and row.state is not None and row.state.is_gone:
            end = left + font().width(row.text, TEXT)
            struck = ((left, y - 3.6), (end, y - 3.6))
            self.path(struck, straight=True, stroke=look.light.ink, width=0.9)
        self.text(rect.x + rect.width - _PAD, y, row.note, SMALL, ink, end=True)

    def symbol(self, symbol: str, x: float, y: float, colour: str) -> None:
        """Draw the theme's symbol, centred."""
        self.text(x - font().width(symbol, 12) / 2, y + 4.2, symbol, 12, colour)


def _legend_entries(picture: Picture) -> list[tuple[str, str, Look | None]]:
    """Return word, meaning and, for a state, look of everything that needs explaining."""
    looks = [NODE_STATES[state] for state in picture.states]
    entries: list[tuple[str, str, Look | None]] = [
        (look.word, look.meaning, look) for look in looks
    ]
    kinds = {link.kind for link in picture.links}
    if LinkKind.BOUNDARY in kinds:
        entries.append((_LINE, "enters the shared part", None))
    if LinkKind.CARRIED in kinds:
        entries.append((_LINE, "enters an older graph", None))
    if any(box.kind is BoxKind.FOLD for box in picture.boxes):
        entries.append(("double frame", "several nodes folded", None))
    return entries


def _paint(
    *, stroke: str = "", width: float = 1.0, dash: Sequence[int] = (), fill: str = "none"
) -> str:
    line = f' stroke="{stroke}" stroke-width="{_n(width)}"' if stroke else ""
    dashes = f' stroke-dasharray="{" ".join(map(str, dash))}"' if dash else ""
    return f' fill="{fill}"{line}{dashes}'


def _n(value: float) -> str:
    """Return at most two decimals, no trailing zeros and never ``-0``."""
    return "0" if abs(value) < 0.005 else f"{value:.2f}".rstrip("0").rstrip(".")


def _safe(text: str) -> str:
    """Return text for XML, without markup and characters that XML forbids."""
    return escape(escaped(text), quote=True)
