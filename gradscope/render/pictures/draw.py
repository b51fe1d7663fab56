"""Draws graphs, or those of a recording, in the format that the file's suffix names."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.resources import as_file, files
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from gradscope.errors import GradscopeError
from gradscope.model import Graph, Recording
from gradscope.render.pictures import wasm
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.dot import Line, head_of, lines_of, to_dot
from gradscope.render.pictures.picture import DEFAULTS, UNMARKED, Marking, Options, Picture
from gradscope.render.pictures.selection import select
from gradscope.units import escaped

FAMILY = "Liberation Sans"
"""Has the widths of Helvetica and Arial, which every viewer and graphviz know."""

_FONTS = f"'{FAMILY}', Arial, Helvetica, sans-serif"
_SVG = "http://www.w3.org/2000/svg"
_TEXT = f"{{{_SVG}}}text"
_MARK, _PAD = 14.0, 8.0
_MOST = 20_000
"""No one can read so many boxes."""

ElementTree.register_namespace("", _SVG)


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawn picture: an SVG document, its size and its title."""

    svg: str
    width: float
    height: float
    title: str


def to_svg(picture: Picture) -> Scene:
    """Draw the picture; raise LayoutError if it is too large for that."""
    if len(picture.boxes) > _MOST:
        raise wasm.LayoutError(f"no one can read more than {_MOST:,} boxes")
    root = ElementTree.fromstring(wasm.run(to_dot(picture), "svg"))
    lines = {f"b{box.id}": lines_of(box) for box in picture.boxes}
    titles: list[Element] = []
    for group in list(root.iter(f"{{{_SVG}}}g")):
        name = group[0]  # a viewer shows it where the mouse is
        group.remove(name)
        if group.get("class") == "graph":
            _colour(group, head_of(picture))
        elif name.text in lines:
            _colour(group, lines[name.text])
        elif group.get("class") == "cluster":
            for text in group.findall(_TEXT):
                group.remove(text)
                titles.append(text)
    root[0].extend(titles)  # over the links
    for element in root.iter(_TEXT):
        element.attrib.pop("font-family")
        element.text = (element.text or "").replace("\xa0", " ")
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    root.attrib |= {"width": f"{width:g}", "height": f"{height:g}", "font-family": _FONTS}
    title = Element(f"{{{_SVG}}}title")
    title.text = escaped(picture.title)
    root.insert(0, title)
    ElementTree.indent(root, "")
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return Scene(head + ElementTree.tostring(root, "unicode") + "\n", width, height, picture.title)


def _colour(group: Element, lines: Sequence[Line]) -> None:
    """Put in the place of each line its parts, each where it belongs and in its colour."""
    outline = group[0].get("points") or group[0].attrib["d"]
    numbers = [float(number) for number in re.findall(r"[-\d.]+", outline)]
    left, right, above = min(numbers[::2]), max(numbers[::2]), min(numbers[1::2])
    for text, line in zip(group.findall(_TEXT), lines, strict=True):
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        parts = []
        if line.ground:
            place = {"x": left, "y": above, "width": right - left, "height": y + 3.5 - above}
            look = {key: f"{value:g}" for key, value in place.items()}
            parts.append(Element(f"{{{_SVG}}}rect", look | {"fill": line.ground}))
        above = y + 3.5
        start = {"x": f"{x + (_MARK if line.mark else 0):g}", "fill": line.colour}
        if line.is_gone:
            start["text-decoration"] = "line-through"
        end = {"x": f"{right - _PAD:g}", "text-anchor": "end", "fill": line.ink}
        mark = {"fill": line.ink}
        for words, look in ((line.mark.strip(), mark), (line.text, start), (line.note, end)):
            if words:
                part = Element(_TEXT, text.attrib | {"font-size": line.size} | look)
                part.text = escaped(words)
                parts.append(part)
        at = list(group).index(text)
        group[at : at + 1] = parts


_FONT = files("gradscope.render.pictures") / "fonts" / "LiberationSans-Regular.ttf"
_SHARPNESS = 2.0
_MOST_PIXELS = 40_000_000
_LONGEST_SIDE = 16_000


def _png(picture: Picture) -> tuple[bytes, list[str]]:
    import resvg_py

    scene = to_svg(picture)
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


def _pdf(picture: Picture) -> tuple[bytes, list[str]]:
    """Return one page, as large as the picture, whose text can be searched and copied."""
    scene = to_svg(picture)
    with _no_warnings_of("fpdf", "fontTools"), as_file(_FONT) as font:
        from fpdf import FPDF
        from fpdf.svg import SVGObject

        document = FPDF(unit="pt", format=(scene.width, scene.height))
        document.set_title(escaped(scene.title))
        document.set_creation_date(datetime.fromtimestamp(0, UTC))  # same picture, same bytes
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


ENCODERS: dict[str, Callable[[Picture], tuple[bytes, list[str]]]] = {
    ".svg": lambda picture: (to_svg(picture).svg.encode(), []),
    ".png": _png,
    ".pdf": _pdf,
    ".dot": lambda picture: (to_dot(picture).encode(), []),
}
"""Each returns the file's content, and notes on what was changed to make it possible."""


def check_suffix(suffix: str) -> None:
    """Raise GradscopeError for a format that is unknown."""
    if suffix not in ENCODERS:
        raise GradscopeError(
            f"cannot draw to a {suffix or 'file without suffix'}: use one of {', '.join(ENCODERS)}"
        )


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn picture: the number of boxes, and notes for the reader.

    ``content`` is the picture, in the format of ``suffix``. A notebook shows an SVG by itself.
    """

    boxes: int
    notes: tuple[str, ...] = ()
    suffix: str = ".svg"
    content: bytes = field(default=b"", repr=False)

    def _repr_svg_(self) -> str | None:
        return self.content.decode() if self.suffix == ".svg" else None


def draw_recording(
    recording: Recording,
    file: str | os.PathLike[str] | None = None,
    options: Options = DEFAULTS,
    *,
    call: int | None = None,
) -> Drawing:
    """Draw the graph that a backward call met, and those of earlier calls that share its nodes.

    Without ``call`` it is the one of the gravest finding, or else the last. The focus may also be
    ``finding``.
    """
    chosen = select(recording, call, of_finding=options.focus == "finding")
    asked = options.depth is not None or not options.fold
    # A large one is focused on its finding unless the user asks otherwise.
    focus = options.focus or (None if asked else chosen.focus)
    return draw_graphs(chosen.graphs, file, replace(options, focus=focus), chosen.marks)


def draw_graphs(
    graphs: Sequence[Graph],
    file: str | os.PathLike[str] | None,
    options: Options = DEFAULTS,
    marks: Marking = UNMARKED,
) -> Drawing:
    """Draw one graph, or several in one picture with the nodes they share drawn once.

    Raises GradscopeError where the options cannot be met, no graph has a node, all nodes are too
    many to draw, or the file cannot be written.
    """
    target = None if file is None else Path(file)
    suffix = ".svg" if target is None else target.suffix.lower()
    check_suffix(suffix)
    if not any(graph.nodes for graph in graphs):
        raise GradscopeError(
            "there is nothing to draw: the graph has no node (does the tensor require grad?)"
        )
    picture = compose(graphs, options, marks)
    data, more = ENCODERS[suffix](picture)
    if target is not None:
        try:
            target.write_bytes(data)
        except OSError as problem:
            raise GradscopeError(f"cannot write {target}: {problem.strerror}") from problem
    return Drawing(len(picture.boxes), (*picture.notes, *more), suffix, data)
