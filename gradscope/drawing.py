"""Joins the parts of the picture: graphs in, a picture file out, in the format that the file's suffix names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from gradscope.errors import GradscopeError
from gradscope.model import Graph
from gradscope.render.compose import compose
from gradscope.render.dot import to_dot
from gradscope.render.folding import Options
from gradscope.render.image import check_suffix, encode
from gradscope.render.layout import Placed, available_engine, lay_out_columns
from gradscope.render.picture import BoxKind, Picture
from gradscope.render.scene import draw_scene, size_of
from gradscope.render.wrapping import wrap
from gradscope.units import count

_MOST_UNFOLDED = 20_000


@dataclass(frozen=True, slots=True)
class DrawResult:
    """What was drawn: the number of boxes, the CPU seconds it took, and what the reader should know about it."""

    boxes: int
    seconds: float
    notes: tuple[str, ...] = ()


def draw_graphs(
    graphs: Sequence[Graph],
    file: str | os.PathLike[str],
    *,
    focus: str | None = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    fold: bool = True,
    sites: bool = False,
    failing: int | None = None,
    highlight: Sequence[int] = (),
    engine: str = "auto",
    theme: str = "light",
    limit_seconds: float = 10.0,
) -> DrawResult:
    """Draw one graph, or several in one picture with the nodes they share drawn once.

    ``focus`` is ``shared``, ``finding``, or the name of a node, module, leaf or root; ``depth`` folds the calls of
    modules at this depth of their path; ``expand`` opens what a fold shows behind ``open:``; ``fold=False`` draws
    every node. ``sites`` adds the source lines. ``failing`` is the index of the node at which a backward call stops,
    ``highlight`` are those of a finding (both in the first graph). ``engine`` is ``auto``, ``wasm``, ``dot`` or
    ``simple``.
    """
    begun = process_time()
    target = Path(file)
    suffix = target.suffix.lower()
    check_suffix(suffix)
    if theme not in ("light", "dark"):
        raise GradscopeError(f"no theme is called {theme!r}: use light or dark")
    if not any(graph.nodes for graph in graphs):
        raise GradscopeError("there is nothing to draw: the graph has no node (does the tensor require grad?)")
    available_engine(engine)
    too_many = not fold and suffix != ".dot" and sum(len(graph.nodes) for graph in graphs) > _MOST_UNFOLDED
    options = Options(focus, depth, tuple(expand), fold or too_many, failing, tuple(highlight))
    picture = compose(graphs, options, sites=sites)
    notes = list(picture.notes)
    if too_many:
        notes.append(
            f"folded all the same: no one can read {count(_MOST_UNFOLDED)} boxes and more; a .dot has them all"
        )
    if suffix == ".dot":
        data = to_dot(picture, theme=theme).encode()
    else:
        columns = place(picture, engine=engine, limit_seconds=limit_seconds)
        notes += dict.fromkeys(note for column in columns for note in column.notes)
        data, more = encode(draw_scene(columns, picture, notes, theme), suffix)
        notes += more
    try:
        target.write_bytes(data)
    except OSError as problem:
        raise GradscopeError(f"cannot write {target}: {problem.strerror}") from problem
    boxes = sum(box.kind is not BoxKind.STUB for box in picture.boxes)
    return DrawResult(boxes, process_time() - begun, tuple(notes))


def place(picture: Picture, *, engine: str = "auto", limit_seconds: float = 10.0) -> list[Placed]:
    """Lay a picture out, in several columns when it is tall."""
    columns = wrap(picture, [size_of(box) for box in picture.boxes])
    sizes = [[size_of(box) for box in column.boxes] for column in columns]
    return lay_out_columns(columns, sizes, engine=engine, limit_seconds=limit_seconds)
