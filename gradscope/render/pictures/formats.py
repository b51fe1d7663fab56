"""The file formats of pictures: for each suffix the function that writes a drawn scene."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import as_file, files

from gradscope.errors import GradscopeError
from gradscope.render.pictures.svg import FAMILY, Scene
from gradscope.units import escaped

_FONT = files("gradscope.render.pictures") / "fonts" / "LiberationSans-Regular.ttf"
_SHARPNESS = 2.0
_MOST_PIXELS = 40_000_000
_LONGEST_SIDE = 16_000


def _svg(scene: Scene) -> tuple[bytes, list[str]]:
    return scene.svg.encode(), []


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
    with as_file(_FONT) as path:
        data = resvg_py.svg_to_bytes(
            svg_string=scene.svg,
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
    with _no_warnings_of("fpdf", "fontTools"), as_file(_FONT) as font:
        from fpdf import FPDF
        from fpdf.svg import SVGObject

        document = FPDF(unit="pt", format=(scene.width, scene.height))
        document.set_title(escaped(scene.title))
        document.set_creation_date(datetime.fromtimestamp(0, UTC))  # same scene, same bytes
        document.add_font(FAMILY, fname=font)
        document.add_page()
        SVGObject(scene.svg.encode()).draw_to_page(document)
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
    """Raise GradscopeError for a format that is unknown."""
    if suffix not in SUFFIXES:
        raise GradscopeError(
            f"cannot draw to a {suffix or 'file without suffix'}: use one of {', '.join(SUFFIXES)}"
        )
