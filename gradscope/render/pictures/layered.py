"""A simple layered layout in plain Python: cruder than graphviz's, but always there and quick."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.render.pictures.picture import Picture
from gradscope.render.pictures.placed import Placed, Point, Rect, Size

_ROW_GAP = 34.0
_BOX_GAP = 22.0
_FRAME_PAD = 10.0
_FRAME_TITLE = 20.0
_MOST_IN_A_ROW = 14


def place_in_rows(picture: Picture, sizes: Sequence[Size], notes: tuple[str, ...] = ()) -> Placed:
    """Place boxes in rows by their longest paths.

    A new frame begins below the one before it, so that frames never overlap.
    """
    rows = _rows(picture)
    _order_rows(picture, rows)
    boxes = [Rect(0, 0, *size) for size in sizes]
    widths = [sum(sizes[box][0] + _BOX_GAP for box in row) - _BOX_GAP for row in rows]
    width = max(widths, default=0.0) + 2 * _FRAME_PAD * 3
    y = _FRAME_PAD
    deep: frozenset[int] = frozenset()
    for row, used in zip(rows, widths, strict=True):
        frames = frozenset(picture.frames_of(picture.boxes[row[0]]))
        y += _FRAME_TITLE * len(frames - deep) + _FRAME_PAD * len(frames ^ deep)
        deep = frames
        x = (width - used) / 2
        for box in row:
            boxes[box] = boxes[box].moved(x, y)
            x += sizes[box][0] + _BOX_GAP
        y += max(sizes[box][1] for box in row) + _ROW_GAP
    routes = tuple(_route(boxes[link.source], boxes[link.target]) for link in picture.links)
    height = y + _FRAME_PAD * (1 + len(deep))
    rects = _enclose(picture, boxes)
    return Placed(picture, tuple(boxes), routes, rects, width, height, "simple", notes)


def _rows(picture: Picture) -> list[list[int]]:
    above: list[list[int]] = [[] for _ in picture.boxes]
    for link in picture.links:
        above[link.target].append(link.source)
    rank: list[int] = []
    floor, deepest, last = 0, -1, None
    for box in picture.boxes:
        if box.group != last:
            floor, last = deepest + 1, box.group
        rank.append(max([floor, *(rank[source] + 1 for source in above[box.id])]))
        deepest = max(deepest, rank[-1])
    rows: list[list[int]] = [[] for _ in range(deepest + 1)]
    for number, row in enumerate(rank):
        rows[row].append(number)
    most = _MOST_IN_A_ROW
    return [row[at : at + most] for row in rows for at in range(0, len(row), most)]


def _order_rows(picture: Picture, rows: list[list[int]]) -> None:
    """Put each box near the middle of its neighbours in other rows; four sweeps untangle most."""
    near: list[list[int]] = [[] for _ in picture.boxes]
    for link in picture.links:
        near[link.source].append(link.target)
        near[link.target].append(link.source)
    at = [0.0] * len(picture.boxes)
    for sweep in range(4):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            middle = {
                box: sum(at[n] for n in near[box]) / len(near[box]) if near[box] else at[box]
                for box in row
            }
            row.sort(key=lambda box: (middle[box], box))
            for place, number in enumerate(row):
                at[number] = place - len(row) / 2


def _enclose(picture: Picture, rects: Sequence[Rect]) -> dict[int, Rect]:
    """Return the frames around their boxes, each at least as wide as its title."""
    edges: dict[int, tuple[float, float, float, float]] = {}
    for box in picture.boxes:
        rect = rects[box.id]
        for level, frame in enumerate(picture.frames_of(box), 1):
            pad = _FRAME_PAD * level
            top = _FRAME_PAD + _FRAME_TITLE * level
            a, b, c, d = edges.get(frame, (rect.x, rect.y, rect.x, rect.y))
            edges[frame] = (
                min(a, rect.x - pad),
                min(b, rect.y - top),
                max(c, rect.x + rect.width + pad),
                max(d, rect.y + rect.height + pad),
            )
    room = {group.id: 18 + 6.5 * len(group.title) for group in picture.groups}
    return {n: Rect(a, b, max(c - a, room[n]), d - b) for n, (a, b, c, d) in edges.items()}


def _route(source: Rect, target: Rect) -> tuple[Point, ...]:
    """Return one curve from the bottom of a box to the top of the other."""
    x0, y0 = source.x + source.width / 2, source.y + source.height
    x1, y1 = target.x + target.width / 2, target.y
    bend = min(60.0, (y1 - y0) / 2)
    return ((x0, y0), (x0, y0 + bend), (x1, y1 - bend), (x1, y1))
