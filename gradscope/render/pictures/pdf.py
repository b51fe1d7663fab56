"""Writes a scene as a one-page PDF with the bundled font inside: vectors and text that can be searched and copied."""

from __future__ import annotations

import zlib

from gradscope.render.pictures.font import Font, font
from gradscope.render.pictures.layout import Point, Rect
from gradscope.render.pictures.scene import Scene, Shape, Text

_ROUND = 0.5523
"""Handle length of the Bezier curve that comes closest to a quarter of a circle."""


def to_pdf(scene: Scene) -> bytes:
    """The scene as a PDF document; a point of the scene is a point of the page."""
    face = font()
    used: dict[int, str] = {}
    lines = [
        f"1 0 0 -1 0 {_n(scene.height)} cm",
        f"{_rgb(scene.background)} rg 0 0 {_n(scene.width)} {_n(scene.height)} re f",
    ]
    lines += [
        _text(item, face, used) if isinstance(item, Text) else _shape(item) for item in scene.items
    ]
    title = "FEFF" + scene.title.encode("utf-16-be").hex().upper()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {_n(scene.width)} {_n(scene.height)}] /Contents 4 0 R "
        "/Resources << /Font << /F 5 0 R >> >> >>".encode(),
        _stream("\n".join(lines).encode()),
        b"<< /Type /Font /Subtype /Type0 /BaseFont /LiberationSans /Encoding /Identity-H "
        b"/DescendantFonts [6 0 R] /ToUnicode 9 0 R >>",
        f"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /LiberationSans /CIDToGIDMap /Identity "
        f"/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> "
        f"/FontDescriptor 7 0 R /W [{_widths(face, used)}] >>".encode(),
        _descriptor(face),
        _stream(face.data, f"/Length1 {len(face.data)}"),
        _stream(_to_unicode(used)),
        f"<< /Title <{title}> /Producer (gradscope) >>".encode(),
    ]
    return _file(objects)


def _file(objects: list[bytes]) -> bytes:
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        out += b"%010d 00000 n \n" % place
    out += b"trailer\n<< /Size %d /Root 1 0 R /Info %d 0 R >>\n" % (len(objects) + 1, len(objects))
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % start)


def _stream(data: bytes, extra: str = "") -> bytes:
    packed = zlib.compress(data, 9)
    head = f"<< /Length {len(packed)} /Filter /FlateDecode {extra}>>\nstream\n".encode()
    return head + packed + b"\nendstream"


def _descriptor(face: Font) -> bytes:
    def scaled(value: int) -> int:
        return round(value * 1000 / face.units)

    box = " ".join(str(scaled(v)) for v in face.box)
    return (
        f"<< /Type /FontDescriptor /FontName /LiberationSans /Flags 32 /FontBBox [{box}] /ItalicAngle 0 "
        f"/Ascent {scaled(face.ascent)} /Descent {scaled(face.descent)} /CapHeight 729 /StemV 80 /FontFile2 8 0 R >>"
    ).encode()


def _widths(face: Font, used: dict[int, str]) -> str:
    return " ".join(
        f"{glyph} [{round(face.widths[glyph] * 1000 / face.units)}]" for glyph in sorted(used)
    )


def _to_unicode(used: dict[int, str]) -> bytes:
    """The table by which a reader finds and copies text: glyph number to character."""
    rows = [
        f"<{glyph:04X}> <{ch.encode('utf-16-be').hex().upper()}>"
        for glyph, ch in sorted(used.items())
    ]
    blocks = [rows[at : at + 100] for at in range(0, len(rows), 100)]
    body = "\n".join(
        f"{len(block)} beginbfchar\n" + "\n".join(block) + "\nendbfchar" for block in blocks
    )
    return (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap\n/CMapName /Gradscope def /CMapType 2 def\n"
        "1 begincodespacerange <0000> <FFFF> endcodespacerange\n"
        + body
        + "\nendcmap CMapName currentdict /CMap defineresource "
        "pop end end\n"
    ).encode()


def _text(item: Text, face: Font, used: dict[int, str]) -> str:
    if not item.text:
        return ""
    glyphs = []
    for ch in item.text:
        glyph = face.glyphs.get(ord(ch), 0)
        used.setdefault(glyph, ch)
        glyphs.append(f"{glyph:04X}")
    x = item.x - face.width(item.text, item.size) if item.end else item.x
    # The page is turned upside down so that y grows downwards, so texts are turned back.
    return f"BT {_rgb(item.colour)} rg /F {_n(item.size)} Tf 1 0 0 -1 {_n(x)} {_n(item.y)} Tm <{''.join(glyphs)}> Tj ET"


def _shape(item: Shape) -> str:
    parts = []
    if item.fill is not None:
        parts.append(f"{_rgb(item.fill)} rg")
    if item.stroke is not None:
        parts.append(
            f"{_rgb(item.stroke)} RG {_n(item.width)} w [{' '.join(map(str, item.dash))}] 0 d"
        )
    parts.append(_rounded(item.rect, item.radius) if item.rect is not None else _path(item))
    parts.append(
        {(True, True): "B", (True, False): "f", (False, True): "S"}[
            item.fill is not None, item.stroke is not None
        ]
    )
    return " ".join(parts)


def _path(item: Shape) -> str:
    (x, y), *rest = item.points
    out = [f"{_n(x)} {_n(y)} m"]
    if item.straight:
        out += [f"{_n(x)} {_n(y)} l" for x, y in rest]
    else:
        out += [_curve(*rest[at : at + 3]) for at in range(0, len(rest), 3)]
    return " ".join(out) + (" h" if item.fill is not None else "")


def _curve(a: Point, b: Point, c: Point) -> str:
    return " ".join(f"{_n(x)} {_n(y)}" for x, y in (a, b, c)) + " c"


def _rounded(rect: Rect, radius: float) -> str:
    x, y, w, h = rect.x, rect.y, rect.width, rect.height
    if not radius:
        return f"{_n(x)} {_n(y)} {_n(w)} {_n(h)} re"
    r = min(radius, w / 2, h / 2)
    k = r * (1 - _ROUND)
    right, low = x + w, y + h
    return " ".join(
        [
            f"{_n(x + r)} {_n(y)} m {_n(right - r)} {_n(y)} l",
            _curve((right - k, y), (right, y + k), (right, y + r)),
            f"{_n(right)} {_n(low - r)} l",
            _curve((right, low - k), (right - k, low), (right - r, low)),
            f"{_n(x + r)} {_n(low)} l",
            _curve((x + k, low), (x, low - k), (x, low - r)),
            f"{_n(x)} {_n(y + r)} l",
            _curve((x, y + k), (x + k, y), (x + r, y)),
            "h",
        ]
    )


def _rgb(colour: str) -> str:
    return " ".join(f"{int(colour[at : at + 2], 16) / 255:.3f}" for at in (1, 3, 5))


def _n(value: float) -> str:
    return f"{value:.2f}"
