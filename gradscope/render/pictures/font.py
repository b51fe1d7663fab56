"""The bundled font: which characters it has and how wide they are, read from the file itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FAMILY = "Liberation Sans"
"""Has the widths of Helvetica and Arial, which every viewer and graphviz know: a text fits with any of the three."""

FILE = files("gradscope.render.pictures") / "fonts" / "LiberationSans-Regular.ttf"


@dataclass(frozen=True, slots=True)
class Font:
    """Glyph numbers by character and advance widths by glyph, in 1/``units`` of the font size."""

    units: int
    glyphs: dict[int, int]
    widths: tuple[int, ...]

    def width(self, text: str, size: float) -> float:
        """Width of a text in points; a character that the font lacks counts as a full square."""
        total = 0
        for ch in text:
            glyph = self.glyphs.get(ord(ch))
            total += self.units if glyph is None else self.widths[glyph]
        return total * size / self.units


@cache
def font() -> Font:
    """The bundled font, parsed once."""
    data = FILE.read_bytes()
    tables: dict[bytes, int] = {}
    for at in range(12, 12 + 16 * struct.unpack_from(">H", data, 4)[0], 16):
        tables[data[at : at + 4]] = struct.unpack_from(">I", data, at + 8)[0]
    units = struct.unpack_from(">H", data, tables[b"head"] + 18)[0]
    metrics = struct.unpack_from(">H", data, tables[b"hhea"] + 34)[0]
    count = struct.unpack_from(">H", data, tables[b"maxp"] + 4)[0]
    widths = list(struct.unpack_from(f">{2 * metrics}H", data, tables[b"hmtx"])[::2])
    widths += widths[-1:] * (count - metrics)
    return Font(units, _characters(data, tables[b"cmap"]), tuple(widths))


def _characters(data: bytes, cmap: int) -> dict[int, int]:
    """Character to glyph from the table of format 4 (Unicode, 16 bits)."""
    start = 0
    for at in range(cmap + 4, cmap + 4 + 8 * struct.unpack_from(">H", data, cmap + 2)[0], 8):
        platform, encoding, offset = struct.unpack_from(">HHI", data, at)
        if (platform, encoding) == (3, 1):
            start = cmap + offset
    segments = struct.unpack_from(">H", data, start + 6)[0] // 2
    ends, starts, deltas, offsets = (
        struct.unpack_from(f">{segments}H", data, start + 14 + skip + 2 * segments * column)
        for column, skip in enumerate((0, 2, 2, 2))
    )
    glyphs: dict[int, int] = {}
    for segment in range(segments):
        for code in range(starts[segment], min(ends[segment], 0xFFFE) + 1):
            glyph = code
            if offsets[segment]:
                place = (
                    start
                    + 16
                    + 6 * segments
                    + 2 * segment
                    + offsets[segment]
                    + 2 * (code - starts[segment])
                )
                glyph = struct.unpack_from(">H", data, place)[0]
                if not glyph:
                    continue
            glyphs[code] = (glyph + deltas[segment]) & 0xFFFF
    return glyphs
