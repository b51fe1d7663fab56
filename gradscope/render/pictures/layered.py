"""A simple layered layout in plain Python: slower to read than graphviz's, but always there and always quick."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.render.pictures.picture import Picture

_ROW_GAP = 34.0
_BOX_GAP = 22.0
_FRAME_PAD = 10.0
_FRAME_TITLE = 20.0
_MOST_IN_A_ROW = 14

Corner = tuple[float, float]
Route = tuple[Corner, ...]


def place_in_rows(
    picture: Picture, sizes: Sequence[tuple[float, float]]
) -> tuple[list[Corner], list[Route], dict[int, tuple[float, float, float, float]], float, float]:
    """Corners of the boxes, routes of the links, frames of the groups, width and height.

    Rows are longest paths; a new frame begins below the one before it, so that frames never overlap.
    """
    rows = _rows(picture)
    _order_rows(picture, rows)
    corners: list[Corner] = [(0.0, 0.0)] * len(picture.boxes)
    widths = [sum(sizes[box][0] + _BOX_GAP for box in row) - _BOX_GAP for row in rows]
    width = max(widths, default=0.0) + 2 * _FRAME_PAD * 3
    y = _FRAME_PAD
    deep: frozenset[int] = frozenset()
    for row, used in zip(rows, widths, strict=True):
        frames = frozenset(_frames(picture, row[0]))
        y += _FRAME_TITLE * len(frames - deep) + _FRAME_PAD * len(frames ^ deep)
        deep = frames
        x = (width - used) / 2
        for box in row:
            corners[box] = (x, y)
            x += sizes[box][0] + _BOX_GAP
        y += max(sizes[box][1] for box in row) + _ROW_GAP
    rects = _enclose(picture, corners, sizes)
    routes = [_route(corners, sizes, link.source, link.target) for link in picture.links]
    return corners, routes, rects, width, y + _FRAME_PAD * (1 + len(deep))


def _frames(picture: Picture, box: int) -> list[int]:
    """The frames that a box stands in, innermost first."""
    frames = []
    group = picture.boxes[box].group
    while group is not None:
        frames.append(group)
        group = next(g.parent for g in picture.groups if g.id == group)
    return frames


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
    return [
        row[at : at + _MOST_IN_A_ROW] for row in rows for at in range(0, len(row), _MOST_IN_A_ROW)
    ]


def _order_rows(picture: Picture, rows: list[list[int]]) -> None:
    """Put each box near the middle of its neighbours in the other rows; four sweeps are enough to untangle most."""
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
            row[:] = [box for _, box in sorted((middle[box], box) for box in row)]
            for place, number in enumerate(row):
                at[number] = place - len(row) / 2


def _enclose(
    picture: Picture, corners: Sequence[Corner], sizes: Sequence[tuple[float, float]]
) -> dict[int, tuple[float, float, float, float]]:
    edges: dict[int, tuple[float, float, float, float]] = {}
    for box in picture.boxes:
        (x, y), (w, h) = corners[box.id], sizes[box.id]
        for level, frame in enumerate(_frames(picture, box.id), 1):
            pad = _FRAME_PAD * level
            top = pad + _FRAME_TITLE * level - _FRAME_PAD * (level - 1)
            a, b, c, d = edges.get(frame, (x, y, x, y))
            edges[frame] = (
                min(a, x - pad),
                min(b, y - top),
                max(c, x + w + pad),
                max(d, y + h + pad),
            )
    room = {
        group.id: 18 + 6.5 * len(group.title) for group in picture.groups
    }  # no title wider than its frame
    return {frame: (a, b, max(c - a, room[frame]), d - b) for frame, (a, b, c, d) in edges.items()}


def _route(
    corners: Sequence[Corner], sizes: Sequence[tuple[float, float]], source: int, target: int
) -> Route:
    """One curve from the bottom of a box to the top of the other."""
    x0, y0 = corners[source][0] + sizes[source][0] / 2, corners[source][1] + sizes[source][1]
    x1, y1 = corners[target][0] + sizes[target][0] / 2, corners[target][1]
    bend = min(60.0, (y1 - y0) / 2)
    return ((x0, y0), (x0, y0 + bend), (x1, y1 - bend), (x1, y1))
