"""Layout: boxes hold their texts, frames their boxes, and a picture that cannot be laid out is folded."""

from __future__ import annotations

import re
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from drawn import chain, graph, hostile, iterations, op, two_losses
from fontTools.ttLib import TTFont

from gradscope.fixing.gradient_paths import LineState
from gradscope.model import Graph
from gradscope.render.pictures import Arrow, Box, BoxRow, Cluster, Options, Picture, draw, layout
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import draw_graphs, to_svg
from gradscope.render.pictures.layout import LayoutError, lay_out


def picture_of(whole: Graph, **options: object) -> Picture:
    return compose([whole], Options(**options))  # type: ignore[arg-type]


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float


class Placed:
    """Where the boxes of a picture are, the frames, and the links, each from its start to its tip."""

    def __init__(self, picture: Picture) -> None:
        svg = ElementTree.fromstring(to_svg(picture).svg.encode())
        self.page, *_ = rects(svg, "graph")
        self.boxes = rects(svg, "node")
        self.frames = rects(svg, "cluster")
        self.lines = [
            (points(shapes(group)[0])[0], points(shapes(group)[1])[1])
            for group in svg.iter(f"{SVG}g")
            if group.get("class") == "edge"
        ]
        self.texts = [
            text_rects(group) for group in svg.iter(f"{SVG}g") if group.get("class") == "node"
        ]


SVG = "{http://www.w3.org/2000/svg}"


def shapes(group: ElementTree.Element) -> list[ElementTree.Element]:
    return [one for one in group if one.tag in (f"{SVG}polygon", f"{SVG}path")]


def points(shape: ElementTree.Element) -> list[tuple[float, float]]:
    numbers = re.findall(r"[-\d.]+", shape.get("points") or shape.attrib["d"])
    return [(float(x), float(y)) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]


def rects(svg: ElementTree.Element, kind: str) -> list[Rect]:
    found = []
    for group in svg.iter(f"{SVG}g"):
        if group.get("class") == kind:
            xs, ys = zip(*points(shapes(group)[0]), strict=True)
            found.append(Rect(min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)))
    return found


def text_rects(group: ElementTree.Element) -> list[Rect]:
    """As wide as the texts are in the font that comes along."""
    with (
        (files("gradscope.render.pictures") / "fonts/LiberationSans-Regular.ttf").open(
            "rb"
        ) as file,
        TTFont(file) as face,
    ):
        glyphs, advances = face.getBestCmap(), face["hmtx"].metrics
    found = []
    for text in group.iter(f"{SVG}text"):
        size, x, y = (float(text.attrib[name]) for name in ("font-size", "x", "y"))
        width = sum(advances[glyphs[ord(one)]][0] for one in text.text or "") * size / 2048
        left = x - width if text.get("text-anchor") == "end" else x
        found.append(Rect(left, y - 0.7 * size, width, 0.7 * size))
    return found


def inside(inner: Rect, outer: Rect) -> bool:
    slack = 0.6
    return (
        outer.x - slack <= inner.x
        and outer.y - slack <= inner.y
        and inner.x + inner.width <= outer.x + outer.width + slack
        and inner.y + inner.height <= outer.y + outer.height + slack
    )


def overlap(a: Rect, b: Rect) -> bool:
    return (
        a.x < b.x + b.width
        and b.x < a.x + a.width
        and a.y < b.y + b.height
        and b.y < a.y + a.height
    )


def wide() -> Graph:
    """One node over forty others: wider than any page."""
    nodes = [op(0, "Stack", 99), *(op(n, "Mul", 99 - n) for n in range(1, 29))]
    return graph(nodes, [(0, n) for n in range(1, 29)], loss=0)


@pytest.mark.parametrize("whole", [two_losses(), iterations(3), chain(25), wide()])
def test_boxes_are_apart_and_in_their_frames(whole: Graph) -> None:
    layout = Placed(picture_of(whole))
    for number, rect in enumerate(layout.boxes):
        assert inside(rect, layout.page)
        assert not any(overlap(rect, other) for other in layout.boxes[number + 1 :])
        for frame in layout.frames:
            assert inside(rect, frame) or not overlap(rect, frame)


@pytest.mark.parametrize("whole", [two_losses(), hostile(), iterations(3), chain(25), chain(500)])
def test_texts_are_in_their_boxes_and_apart(whole: Graph) -> None:
    layout = Placed(picture_of(whole, sites=True))
    for box, texts in zip(layout.boxes, layout.texts, strict=True):
        assert all(inside(text, box) for text in texts)
        assert not any(overlap(one, two) for n, one in enumerate(texts) for two in texts[n + 1 :])


def way() -> Picture:
    """Lines of a program, as in ``gradscope why --picture``: all that a picture of a way can hold."""
    rows = tuple(BoxRow(text, muted=True) for text in ("line 12", "values come from here, cut off"))
    boxes = [
        Box(n, f"{state} of a line", state, rows=rows, cluster=None if n == 2 else n)
        for n, state in enumerate(LineState)
    ]
    arrows = [Arrow(n, n + 1, state=boxes[n].state) for n in range(3)]  # type: ignore[arg-type]
    fields = [Cluster(n, "a field", state=state) for n, state in enumerate(LineState) if n != 2]
    return Picture("why", "", tuple(boxes), tuple(arrows), tuple(fields), is_way=True)


def test_a_way_goes_from_left_to_right() -> None:
    layout = Placed(way())
    for box, texts in zip(layout.boxes, layout.texts, strict=True):
        assert inside(box, layout.page)
        assert all(inside(text, box) for text in texts)
        assert not any(overlap(one, two) for n, one in enumerate(texts) for two in texts[n + 1 :])
    for frame in layout.frames:
        assert sum(inside(box, frame) for box in layout.boxes) == 1
    assert all(x0 < x1 for (x0, _), (x1, _) in layout.lines)


@pytest.mark.parametrize("whole", [two_losses(), iterations(100)])
def test_links_go_from_box_to_box_downwards(whole: Graph) -> None:
    picture = picture_of(whole, fold=False)
    layout = Placed(picture)
    assert len(layout.lines) == len(picture.arrows)
    for (x0, y0), (x1, y1) in layout.lines:
        assert any(
            box.x - 1 <= x0 <= box.x + box.width + 1 and abs(y0 - box.y - box.height) < 2
            for box in layout.boxes
        )
        assert any(
            box.x - 1 <= x1 <= box.x + box.width + 1 and abs(y1 - box.y) < 5 for box in layout.boxes
        )


def test_the_time_limit_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = picture_of(chain(6000, ("Add", "Mul")), fold=False)
    with monkeypatch.context() as patched:
        patched.setattr(layout, "_LIMIT", 0.01)
        with pytest.raises(LayoutError) as stopped:
            to_svg(picture)
    assert "cannot draw that: no layout within 0.01 s; a folded" in str(stopped.value)
    assert draw_graphs([chain(60)], None).boxes == 2, "a stopped engine works again"


@pytest.mark.parametrize(
    ("length", "problem"),
    [
        (25_000, "no one can read more than 20,000 boxes"),
        pytest.param(15_000, "too deep for the layout engine", marks=pytest.mark.full),
    ],
)
def test_what_is_too_large_is_refused(length: int, problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        draw_graphs([chain(length)], None, Options(fold=False))


def test_a_folded_picture_without_a_layout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> bytes:
        raise LayoutError("no layout within 10 s")

    monkeypatch.setattr(draw, "lay_out", stopped)
    with pytest.raises(LayoutError, match="no layout within 10 s"):
        draw_graphs([two_losses()], None)


def test_the_compiled_engine_is_kept_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, file = tmp_path / "cache", tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert b"<svg" in lay_out("digraph { a -> b }", "svg")
    assert any(path.stat().st_size > 100_000 for path in cache.rglob("*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert b"<svg" in lay_out("digraph { a -> b }", "svg")


def test_the_engine_leaves_no_thread() -> None:
    before = threads()
    lay_out("digraph { a }", "svg")
    until = time.monotonic() + 60  # they end soon after the layout
    while threads() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == before


def threads() -> int:
    folder = Path("/proc/self/task")
    return len(list(folder.iterdir())) if folder.exists() else threading.active_count()
