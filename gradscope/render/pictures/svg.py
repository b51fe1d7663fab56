"""Has graphviz draw a picture as SVG, and colours its texts: every other image is made of that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from gradscope.render.pictures import wasm
from gradscope.render.pictures.dot import Line, head_of, lines_of, to_dot
from gradscope.render.pictures.picture import Picture
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
