"""Writes a scene as SVG: plain shapes and texts, the same bytes for the same scene."""

from __future__ import annotations

from html import escape

from gradscope.render.pictures.font import FAMILY
from gradscope.render.pictures.placed import Point
from gradscope.render.pictures.scene import Scene, Shape, Text

_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
    "font-family=\"'" + FAMILY + '\', Arial, Helvetica, sans-serif" role="img">'
)


def to_svg(scene: Scene) -> str:
    """The scene as an SVG document."""
    w, h = f"{scene.width:g}", f"{scene.height:g}"
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        _HEAD.format(w=w, h=h),
        f"<title>{_safe(scene.title)}</title>",
    ]
    lines.append(f'<rect width="{w}" height="{h}" fill="{scene.background}"/>')
    lines += [
        _text(item) if isinstance(item, Text) else _shape(item)
        for item in scene.items
        if not _is_empty(item)
    ]
    lines.append("</svg>\n")
    return "\n".join(lines)


def _is_empty(item: Shape | Text) -> bool:
    return isinstance(item, Text) and not item.text


def _text(item: Text) -> str:
    anchor = ' text-anchor="end"' if item.end else ""
    place = f'x="{_n(item.x)}" y="{_n(item.y)}" font-size="{_n(item.size)}"'
    return (
        f'<text {place} fill="{item.colour}"{anchor} xml:space="preserve">{_safe(item.text)}</text>'
    )


def _shape(item: Shape) -> str:
    paint = f' fill="{item.fill or "none"}"'
    if item.stroke is not None:
        paint += f' stroke="{item.stroke}" stroke-width="{_n(item.width)}"'
    if item.dash:
        paint += f' stroke-dasharray="{" ".join(map(str, item.dash))}"'
    if item.rect is not None:
        r = item.rect
        corner = f' rx="{_n(item.radius)}"' if item.radius else ""
        return f'<rect x="{_n(r.x)}" y="{_n(r.y)}" width="{_n(r.width)}" height="{_n(r.height)}"{corner}{paint}/>'
    return f'<path d="{_path(item.points, item.straight, item.fill is not None)}"{paint}/>'


def _path(points: tuple[Point, ...], straight: bool, closed: bool) -> str:
    start, *rest = (f"{_n(x)},{_n(y)}" for x, y in points)
    return f"M{start}{'L' if straight else 'C'}{' '.join(rest)}{'Z' if closed else ''}"


def _n(value: float) -> str:
    """At most two decimals, no trailing zeros and never ``-0``."""
    return "0" if abs(value) < 0.005 else f"{value:.2f}".rstrip("0").rstrip(".")


def _safe(text: str) -> str:
    """Text for XML: markup escaped, characters that XML forbids replaced."""
    return escape("".join(ch if ch.isprintable() else "\ufffd" for ch in text), quote=True)
