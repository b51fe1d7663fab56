"""Writes a scene as SVG: plain shapes and texts, the same bytes for the same scene."""

from __future__ import annotations

from html import escape

from gradscope.render.pictures.font import FAMILY
from gradscope.render.pictures.picture import Point
from gradscope.render.pictures.scene import Scene, Shape, Text
from gradscope.units import escaped

_FONTS = f"'{FAMILY}', Arial, Helvetica, sans-serif"


def to_svg(scene: Scene) -> str:
    """Return the scene as an SVG document."""
    w, h = f"{scene.width:g}", f"{scene.height:g}"
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" '
        f'viewBox="0 0 {w} {h}" font-family="{_FONTS}" role="img">',
        f"<title>{_safe(scene.title)}</title>",
        f'<rect width="{w}" height="{h}" fill="{scene.background}"/>',
    ]
    for item in scene.items:
        if isinstance(item, Shape):
            lines.append(_shape(item))
        elif item.text:
            lines.append(_text(item))
    lines.append("</svg>\n")
    return "\n".join(lines)


def _text(item: Text) -> str:
    anchor = ' text-anchor="end"' if item.end else ""
    place = f'x="{_n(item.x)}" y="{_n(item.y)}" font-size="{_n(item.size)}"'
    paint = f'fill="{item.colour}"{anchor} xml:space="preserve"'
    return f"<text {place} {paint}>{_safe(item.text)}</text>"


def _shape(item: Shape) -> str:
    paint = f' fill="{item.fill or "none"}"'
    if item.stroke is not None:
        paint += f' stroke="{item.stroke}" stroke-width="{_n(item.width)}"'
    if item.dash:
        paint += f' stroke-dasharray="{" ".join(map(str, item.dash))}"'
    if item.rect is None:
        return f'<path d="{_path(item.points, item.straight, item.fill is not None)}"{paint}/>'
    r = item.rect
    corner = f' rx="{_n(item.radius)}"' if item.radius else ""
    size = f'width="{_n(r.width)}" height="{_n(r.height)}"'
    return f'<rect x="{_n(r.x)}" y="{_n(r.y)}" {size}{corner}{paint}/>'


def _path(points: tuple[Point, ...], straight: bool, closed: bool) -> str:
    start, *rest = (f"{_n(x)},{_n(y)}" for x, y in points)
    return f"M{start}{'L' if straight else 'C'}{' '.join(rest)}{'Z' if closed else ''}"


def _n(value: float) -> str:
    """Return at most two decimals, no trailing zeros and never ``-0``."""
    return "0" if abs(value) < 0.005 else f"{value:.2f}".rstrip("0").rstrip(".")


def _safe(text: str) -> str:
    """Return text for XML, without markup and characters that XML forbids."""
    return escape(escaped(text), quote=True)
