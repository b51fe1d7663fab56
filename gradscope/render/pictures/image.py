"""Writes a scene as a picture file in the format that the file's suffix names."""

from __future__ import annotations

from importlib.resources import as_file, files
from importlib.util import find_spec

from gradscope.errors import GradscopeError
from gradscope.render.pictures.font import FAMILY
from gradscope.render.pictures.pdf import to_pdf
from gradscope.render.pictures.scene import Scene
from gradscope.render.pictures.svg import to_svg

SUFFIXES = (".svg", ".png", ".pdf", ".dot")

_SHARPNESS = 2.0
_MOST_PIXELS = 40_000_000
_LONGEST_SIDE = 16_000


def check_suffix(suffix: str) -> None:
    """One clear line for a file whose format is unknown or needs a package that is missing."""
    if suffix not in SUFFIXES:
        raise GradscopeError(
            f"cannot draw to a {suffix or 'file without suffix'}: use one of {', '.join(SUFFIXES)}"
        )
    if suffix == ".png" and find_spec("resvg_py") is None:
        raise GradscopeError("PNG pictures need resvg-py: pip install resvg-py, or draw to .svg")


def encode(scene: Scene, suffix: str) -> tuple[bytes, list[str]]:
    """The file's content, and notes on what was changed to make it possible."""
    if suffix == ".svg":
        return to_svg(scene).encode(), []
    if suffix == ".pdf":
        return to_pdf(scene), []
    return _png(scene)


def _png(scene: Scene) -> tuple[bytes, list[str]]:
    import resvg_py

    zoom = min(
        _SHARPNESS,
        (_MOST_PIXELS / (scene.width * scene.height)) ** 0.5,
        _LONGEST_SIDE / max(scene.width, scene.height),
    )
    notes = (
        [f"the PNG is drawn at {zoom:.0%} of its size: use .svg or .pdf to read all of it"]
        if zoom < 1
        else []
    )
    with as_file(
        files("gradscope.render.pictures").joinpath("fonts/LiberationSans-Regular.ttf")
    ) as path:
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
