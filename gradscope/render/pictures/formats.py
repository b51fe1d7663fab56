"""The file formats of pictures: for each suffix the function that writes a drawn scene."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from html import escape
from importlib.resources import as_file
from importlib.util import find_spec

from gradscope.errors import GradscopeError
from gradscope.render.pictures.picture import Point
from gradscope.render.pictures.scene import FAMILY, FILE, Scene, Shape, Text
from gradscope.units import escaped

_SHARPNESS = 2.0
_MOST_PIXELS = 40_000_000
_LONGEST_SIDE = 16_000
_NEEDS = {".png": ("resvg_py", "resvg-py"), ".pdf": ("fpdf", "fpdf2")}
"""The package that an encoder imports, and the name to install it by."""

_FONTS = f"'{FAMILY}', Arial, Helvetica, sans-serif"


def _svg(scene: Scene) -> tuple[bytes, list[str]]:
    return to_svg(scene).encode(), []


def _png(scene: Scene) -> tuple[bytes, list[str]]:
    import resvg_py

    zoom = min(
        _SHARPNESS,
        (_MOST_PIXELS / (scene.width * scene.height)) ** 0.5,
        _LONGEST_SIDE / max(scene.width, scene.height),
    )
    notes = []
    if zoom < 1:
        notes = [f"the PNG is drawn at {zoom:.0%} of its size: use .svg or .pdf to read all of it"]
    with as_file(FILE) as path:
        data = resvg_py.svg_to_bytes(
            svg_string=to_svg(scene),
            font_files=[str(path)],
            skip_system_fonts=True,
            font_family=FAMILY,
            sans_serif_family=FAMILY,
            dpi=96,
            width=max(1, round(scene.width * zoom)),
        )
    return bytes(data), notes


def _pdf(scene: Scene) -> tuple[bytes, list[str]]:
    """Return one page, as large as the scene, whose text can be searched and copied."""
    with _no_warnings_of("fpdf", "fontTools"), as_file(FILE) as font:
        from fpdf import FPDF
        from fpdf.svg import SVGObject

        document = FPDF(unit="pt", format=(scene.width, scene.height))
        document.set_title(escaped(scene.title))
        document.set_creation_date(datetime.fromtimestamp(0, UTC))  # same scene, same bytes
        document.add_font(FAMILY, fname=font)
        document.add_page()
        SVGObject(to_svg(scene).encode()).draw_to_page(document)
        return bytes(document.output()), []


@contextmanager
def _no_warnings_of(*loggers: str) -> Iterator[None]:
    """Keep warnings about parts that a PDF leaves out, as missing glyphs, from the user's log."""
    chosen = [logging.getLogger(name) for name in loggers]
    levels = [logger.level for logger in chosen]
    for logger in chosen:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(chosen, levels, strict=True):
            logger.setLevel(level)


ENCODERS: dict[str, Callable[[Scene], tuple[bytes, list[str]]]] = {
    ".svg": _svg,
    ".png": _png,
    ".pdf": _pdf,
}
"""Each returns the file's content, and notes on what was changed to make it possible."""

SUFFIXES = (*ENCODERS, ".dot")
"""A .dot is written from the picture itself, before anything has a place."""


def check_suffix(suffix: str) -> None:
    """Raise GradscopeError for a format that is unknown or needs a package that is missing."""
    if suffix not in SUFFIXES:
        raise GradscopeError(
            f"cannot draw to a {suffix or 'file without suffix'}: use one of {', '.join(SUFFIXES)}"
        )
    module, package = _NEEDS.get(suffix, ("", ""))
    if module and find_spec(module) is None:
        kind = suffix.removeprefix(".").upper()
        raise GradscopeError(
            f"{kind} pictures need {package}: pip install {package}, or draw to .svg"
        )


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
