"""Draws graphs in the format that the file's suffix names.

Of a recording it chooses which belong in one picture, and as of which moment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from gradscope.errors import GradscopeError
from gradscope.formatting import counted, escaped, firsts, listed
from gradscope.model import (
    BackwardCall,
    Certainty,
    Finding,
    Graph,
    Node,
    NodeState,
    Recording,
    SavedState,
)
from gradscope.render.pictures import DEFAULTS, UNMARKED, Marking, Options, Picture
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.folding import COMFORTABLE
from gradscope.render.pictures.layout import LayoutError, Line, head_of, lay_out, lines_of, to_dot

MOST_CALLS = 4  # more graphs than these in one picture show less, not more

# If there are more nodes to mark, only the first is, because marks would hide all else.
_MOST_MARKED = 8


class Selection(NamedTuple):
    """Graphs for one picture, oldest first; the last one is that of the call asked for.

    ``focus`` is what to look at where the user does not say.
    """

    graphs: tuple[Graph, ...]
    marks: Marking
    focus: str | None = None


def select(recording: Recording, call: int | None = None, *, of_finding: bool = False) -> Selection:
    """Select the graph that backward call ``call`` met, and earlier ones that share nodes with it.

    Without a number it is the call of the gravest finding, or else the last one. ``of_finding``
    asks for a finding's. The earlier graphs are as they are at that moment. Raises GradscopeError
    where there is no such call, graph or finding.
    """
    finding = _finding(recording, call)
    if of_finding and finding is None:
        where = "the recording" if call is None else f"call {call}"
        raise GradscopeError(
            f"{where} has no finding that speaks of a graph; leave the focus on it out"
        )
    if call is None and finding is not None:
        call = finding.backward_call
    row = _row(recording, call)
    if row.graph not in recording.graphs:
        number = row.number if call is None else call
        raise GradscopeError(
            f"the graph of backward call {number} is not in the recording; {_stored(recording)}"
        )
    whole = recording.graphs[row.graph]
    shown = [whole]
    if earlier := _earlier(recording, row, whole):
        before = (_roots_named(_after(graph, by), by.number) for by, graph in earlier)
        shown = [*before, _roots_named(whole, row.number)]
    marked: tuple[int, ...] = ()
    stops = False
    if finding is not None:
        marked = tuple(node for node in finding.graph_nodes if node < len(whole.nodes))
        marked = marked if len(marked) <= _MOST_MARKED else marked[:1]
        stops = finding.certainty is not Certainty.PREDICTED and not finding.missed
    large = len(set.union(*map(_identities, shown))) > COMFORTABLE
    focus = "finding" if marked and large else None
    return Selection(tuple(shown), Marking(marked, stops, _moment(row, call)), focus)


def _finding(recording: Recording, call: int | None) -> Finding | None:
    """Return the gravest finding that is not suppressed, about nodes of a stored graph; of call
    ``call``, if given.
    """
    asked = (f for f in recording.findings if call in (None, f.backward_call) and not f.suppression)
    usable = (f for f in asked if f.graph in recording.graphs and f.graph_nodes)
    return min(usable, key=lambda f: f.severity.rank, default=None)


def _row(recording: Recording, call: int | None) -> BackwardCall:
    """Return the row of a call, or that of the last one whose graph is there."""
    rows = recording.calls
    if not rows:
        raise GradscopeError("no backward call was made, so there is no graph to draw")
    if call is None:
        return max(rows, key=lambda row: (row.graph in recording.graphs, row.last_number))
    around = [row for row in rows if row.includes(call)]
    if not around:
        calls = counted(max(row.last_number for row in rows), "call")
        raise GradscopeError(f"there is no backward call {call} in the recording: it has {calls}")
    # Rows of calls that take turns overlap: the one whose turn it was comes in even steps.
    return max(around, key=lambda row: (row.number == call, _in_step(row, call), row.number))


def _in_step(row: BackwardCall, call: int) -> bool:
    step, uneven = divmod(row.last_number - row.number, max(row.count - 1, 1))
    return not uneven and step > 0 and (call - row.number) % step == 0


def _stored(recording: Recording) -> str:
    """Return which calls can be drawn instead, as text."""
    numbers = sorted(row.number for row in recording.calls if row.graph in recording.graphs)
    if not numbers:
        return "it has none at all"
    return f"draw one of calls {listed(map('{:,}'.format, numbers), 5)}"


def _moment(row: BackwardCall, call: int | None) -> str:
    """Return when the graph looked so: ``as backward call 2 found it (train.py:42)``."""
    number = row.number if call is None else call
    place = "" if row.site is None else f" ({row.site.place})"
    alike = ""
    if number != row.number:
        alike = f", as alike call {row.number:,} did"
    elif row.count > 1:
        alike = f", the first of {row.count:,} alike"
    kind = "autograd.grad" if row.kind == "grad" else "backward"
    return f"as {kind} call {number:,} found it{place}{alike}"


def _earlier(
    recording: Recording, row: BackwardCall, whole: Graph
) -> list[tuple[BackwardCall, Graph]]:
    """Return the last calls before this one whose graphs share a node with its graph ``whole``.

    Those that freed such a node come before others. A graph is stored at its first sight, so
    sequence numbers can be compared only between calls that were the first to meet their graphs.
    """
    first = firsts(sorted(recording.calls, key=lambda call: call.number), lambda call: call.graph)
    if first[row.graph] != row:
        return []
    before = {
        other.number: (other, graph)
        for number, graph in recording.graphs.items()
        if (other := first.get(number)) and other.thread == row.thread and other.number < row.number
    }
    own = _identities(whole)
    sharing = [number for number, (_, graph) in before.items() if own & _identities(graph)]
    freed_by = {node.freed_by for node in whole.nodes}
    chosen = sorted(sharing, key=lambda number: (number in freed_by, number))[-MOST_CALLS + 1 :]
    return [before[number] for number in sorted(chosen)]


def _identities(graph: Graph) -> set[tuple[int, str]]:
    return {(node.sequence_nr, node.name) for node in graph.nodes if node.sequence_nr is not None}


def _after(graph: Graph, call: BackwardCall) -> Graph:
    """Return the graph that ``call`` met, as the call left it."""
    if call.exception is not None:
        return graph
    nodes = tuple(_left(node, call.number, call.retain_graph) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _left(node: Node, call: int, kept: bool) -> Node:
    if not (node.will_run and node.state.is_whole):
        return node
    if kept:
        return replace(node, state=NodeState.RETAINED)
    gone = tuple(replace(tensor, state=SavedState.FREED) for tensor in node.saved)
    return replace(node, state=NodeState.FREED, saved=gone, freed_by=call)


def _roots_named(graph: Graph, call: int) -> Graph:
    """Name the call in the names of its graph's roots, as many a loop calls them all ``loss``."""
    roots = tuple(
        replace(root, name=f"{root.name} (call {call:,})" if root.name else f"call {call:,}")
        for root in graph.roots
    )
    return replace(graph, roots=roots)


FAMILY = "Liberation Sans"
"""Has the widths of Helvetica and Arial, which every viewer and graphviz know."""

_FONTS = f"'{FAMILY}', Arial, Helvetica, sans-serif"
_SVG = "http://www.w3.org/2000/svg"
_TEXT = f"{{{_SVG}}}text"
_MARK, _PAD = 14.0, 8.0  # points for the mark before a text, and between a text and its box
_MOST = 20_000  # boxes of a picture that is not folded: nobody can read more

ElementTree.register_namespace("", _SVG)


class Scene(NamedTuple):
    """A drawn picture: an SVG document, and its size."""

    svg: str
    width: float
    height: float


def to_svg(picture: Picture) -> Scene:
    """Draw the picture; raise LayoutError if it is too large for that."""
    if len(picture.boxes) > _MOST:
        raise LayoutError(f"no one can read more than {_MOST:,} boxes")
    root = ElementTree.fromstring(lay_out(to_dot(picture), "svg"))
    lines = {f"b{box.id}": lines_of(box) for box in picture.boxes}
    titles: list[Element] = []
    for group in list(root.iter(f"{{{_SVG}}}g")):
        name = group[0]  # a viewer shows it where the mouse is
        group.remove(name)
        if group.get("class") == "graph":
            _colour(group, head_of(picture))
        elif name.text in lines:
            _colour(group, lines[name.text])
            said = ", ".join(f"{one.text} {one.note}".strip() for one in lines[name.text])
            group.attrib |= {"role": "img", "aria-label": escaped(said)}
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
    return Scene(head + ElementTree.tostring(root, "unicode") + "\n", width, height)


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
        if line.mark == "✂":  # the font does not have it
            look = {"d": _BLADES, "fill": "none", "stroke": line.ink, "stroke-width": "1.2"}
            look["transform"] = f"translate({x:g} {y:g})"
            parts.append(Element(f"{{{_SVG}}}path", look))
        for words, look in ((line.mark.strip(" ✂"), mark), (line.text, start), (line.note, end)):
            if words:
                part = Element(_TEXT, text.attrib | {"font-size": line.size} | look)
                part.text = escaped(words)
                parts.append(part)
        at = list(group).index(text)
        group[at : at + 1] = parts


_RING = "a1.9,1.9 0 1 0 3.8,0a1.9,1.9 0 1 0 -3.8,0"
_BLADES = f"M0,-7.3{_RING}M0,-1.3{_RING}M3.3,-6l7.7,4.7M3.3,-2.6l7.7,-4.7"
_FONT = files("gradscope.render.pictures") / "fonts" / "LiberationSans-Regular.ttf"
_SHARPNESS = 2.0  # pixels a point, as screens have now
# A larger PNG is drawn smaller, with a note: 40 million pixels take 160 MB while they are drawn,
# and some viewers refuse longer sides.
_MOST_PIXELS, _LONGEST_SIDE = 40_000_000, 16_000


def _png(picture: Picture) -> tuple[bytes, list[str]]:
    import resvg_py

    scene = to_svg(picture)
    longest = _LONGEST_SIDE / max(scene.width, scene.height)
    zoom = min(_SHARPNESS, longest, (_MOST_PIXELS / (scene.width * scene.height)) ** 0.5)
    note = f"the PNG is drawn at {zoom:.0%} of its size: use .svg to read all of it"
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
    return bytes(data), [note] if zoom < 1 else []


ENCODERS: dict[str, Callable[[Picture], tuple[bytes, list[str]]]] = {
    ".svg": lambda picture: (to_svg(picture).svg.encode(), []),
    ".png": _png,
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

    Without ``call``, draw the graph of the most severe finding, or else of the last call. The focus
    may also be ``finding``.
    """
    chosen = select(recording, call, of_finding=options.focus == "finding")
    standing = next((each for each in recording.findings if not each.suppression), None)
    notes: tuple[str, ...] = ()
    if call is None and standing is not None and _finding(recording, None) is None:
        notes = (f"the recording has no graph of {standing.code}: this is that of a backward call",)
    asked = options.depth is not None or not options.fold
    # A large one is focused on its finding unless the user asks otherwise.
    focus = options.focus or (None if asked else chosen.focus)
    drawn = draw_graphs(chosen.graphs, file, replace(options, focus=focus), chosen.marks)
    return replace(drawn, notes=notes + drawn.notes)


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
    if not any(graph.nodes for graph in graphs):
        raise GradscopeError(
            "there is nothing to draw: the graph has no node (does the tensor require grad?)"
        )
    return draw_picture(compose(graphs, options, marks), file)


def draw_picture(picture: Picture, file: str | os.PathLike[str] | None) -> Drawing:
    """Draw a picture, and write it to the file, if one is named."""
    target = None if file is None else Path(file)
    suffix = ".svg" if target is None else target.suffix.lower()
    check_suffix(suffix)
    data, more = ENCODERS[suffix](picture)
    if target is not None:
        try:
            target.write_bytes(data)
        except OSError as problem:
            raise GradscopeError(f"cannot write {target}: {problem.strerror}") from problem
    return Drawing(len(picture.boxes), (*picture.notes, *more), suffix, data)
