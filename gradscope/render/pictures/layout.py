"""Places the boxes of a picture by graphviz."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gradscope.render.pictures import wasm
from gradscope.render.pictures.dot import to_bare_dot
from gradscope.render.pictures.picture import Picture, Placed, Point, Rect, Size

_MOST = 20_000
"""No one can read so many boxes."""


def lay_out(picture: Picture, sizes: Sequence[Size]) -> Placed:
    """Place the picture; raise LayoutError if it is too large for that."""
    if len(picture.boxes) > _MOST:
        raise wasm.LayoutError(f"no one can read more than {_MOST:,} boxes")
    answer = json.loads(wasm.run(to_bare_dot(picture, sizes), "json0"))
    return _read(picture, sizes, answer)


def _read(picture: Picture, sizes: Sequence[Size], answer: dict[str, Any]) -> Placed:
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
    return Placed(picture, rects, routes, frames, width, height)


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
