"""The bundled font: which characters it has and how wide they are, read from the file itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fontTools.ttLib import TTFont

FAMILY = "Liberation Sans"
"""Has the widths of Helvetica and Arial, which every viewer and graphviz know."""

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
