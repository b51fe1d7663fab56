"""The bundled font: which characters it has and how wide they are, read from the file itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from struct import unpack_from

FAMILY = "Liberation Sans"
"""Has the widths of Helvetica and Arial, which every viewer and graphviz know."""

FILE = files("gradscope.render.pictures") / "fonts" / "LiberationSans-Regular.ttf"


@dataclass(frozen=True, slots=True)
class Font:
    """Glyph numbers by character and advance widths by glyph, in 1/``units`` of the font size."""

    units: int
    glyphs: dict[int, int]
    widths: tuple[int, ...]

    def width(self, text: str, size: float) -> float:
        """Return the width of a text in points; a missing character counts as a full square."""
        glyphs = (self.glyphs.get(ord(ch)) for ch in text)
        total = sum(self.units if glyph is None else self.widths[glyph] for glyph in glyphs)
        return total * size / self.units


@cache
def font() -> Font:
    """Return the bundled font, parsed once."""
    data = FILE.read_bytes()
    tables: dict[bytes, int] = {}
    for at in range(12, 12 + 16 * unpack_from(">H", data, 4)[0], 16):
        tables[data[at : at + 4]] = unpack_from(">I", data, at + 8)[0]
    units = unpack_from(">H", data, tables[b"head"] + 18)[0]
    metrics = unpack_from(">H", data, tables[b"hhea"] + 34)[0]
    count = unpack_from(">H", data, tables[b"maxp"] + 4)[0]
    widths = list(unpack_from(f">{2 * metrics}H", data, tables[b"hmtx"])[::2])
    widths += widths[-1:] * (count - metrics)
    return Font(units, _characters(data, tables[b"cmap"]), tuple(widths))


def _characters(data: bytes, cmap: int) -> dict[int, int]:
    """Return character to glyph from the table of format 4 (Unicode, 16 bits)."""
    start = 0
    for at in range(cmap + 4, cmap + 4 + 8 * unpack_from(">H", data, cmap + 2)[0], 8):
        platform, encoding, offset = unpack_from(">HHI", data, at)
        if (platform, encoding) == (3, 1):
            start = cmap + offset
    segments = unpack_from(">H", data, start + 6)[0] // 2
    ends, starts, deltas, offsets = (
        unpack_from(f">{segments}H", data, start + 14 + skip + 2 * segments * column)
        for column, skip in enumerate((0, 2, 2, 2))
    )
    glyphs: dict[int, int] = {}
    for segment in range(segments):
        # A segment's offset counts from the place where it is itself written.
        table = start + 16 + 6 * segments + 2 * segment + offsets[segment]
        for code in range(starts[segment], min(ends[segment], 0xFFFE) + 1):
            glyph = code
            if offsets[segment]:
                glyph = unpack_from(">H", data, table + 2 * (code - starts[segment]))[0]
                if not glyph:
                    continue
            glyphs[code] = (glyph + deltas[segment]) & 0xFFFF
    return glyphs
