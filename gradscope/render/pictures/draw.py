"""Draws graphs, or those of a recording, in the format that the file's suffix names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, process_time
from typing import TYPE_CHECKING

from gradscope.errors import GradscopeError
from gradscope.model import Graph, Recording
from gradscope.render.pictures import dot
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.formats import ENCODERS, check_suffix
from gradscope.render.pictures.layout import available_engine, lay_out, wrap
from gradscope.render.pictures.options import DEFAULTS, Options, Theme
from gradscope.render.pictures.picture import UNMARKED, BoxKind, Marks, Picture, Placed
from gradscope.render.pictures.scene import draw_scene, size_of
from gradscope.render.pictures.selection import Selection, select
from gradscope.render.pictures.tree import picture_tree
from gradscope.units import count

if TYPE_CHECKING:
    from rich.tree import Tree

_MOST_UNFOLDED = 20_000


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn picture: the number of boxes, the CPU seconds it took, and notes for the reader.

    ``content`` is the picture, in the format of ``suffix``. A notebook shows an SVG by itself.
    """

    boxes: int
    seconds: float
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

    Without ``call`` it is the one of the gravest finding, or else the last. The focus may also be
    ``finding``.
    """
    chosen, options = _chosen(recording, options, call)
    return draw_graphs(chosen.graphs, file, options, chosen.marks)


def recording_tree(
    recording: Recording,
    options: Options = DEFAULTS,
    *,
    call: int | None = None,
) -> Tree:
    """Return the same graphs as a tree for the terminal, which needs no layout and no theme."""
    chosen, options = _chosen(recording, options, call)
    return picture_tree(compose(chosen.graphs, options, chosen.marks))


def draw_graphs(
    graphs: Sequence[Graph],
    file: str | os.PathLike[str] | None,
    options: Options = DEFAULTS,
    marks: Marks = UNMARKED,
) -> Drawing:
    """Draw one graph, or several in one picture with the nodes they share drawn once.

    Raises GradscopeError where the options cannot be met, no graph has a node, or the file cannot
    be written.
    """
    begun = process_time()
    target = None if file is None else Path(file)
    suffix = ".svg" if target is None else target.suffix.lower()
    check_suffix(suffix)
    if options.theme not in tuple(Theme):
        raise GradscopeError(f"no theme is called {options.theme!r}: use {' or '.join(Theme)}")
    if not any(graph.nodes for graph in graphs):
        raise GradscopeError(
            "there is nothing to draw: the graph has no node (does the tensor require grad?)"
        )
    available_engine(options.engine)
    nodes = sum(len(graph.nodes) for graph in graphs)
    too_many = not options.fold and suffix != ".dot" and nodes > _MOST_UNFOLDED
    picture = compose(graphs, replace(options, fold=options.fold or too_many), marks)
    notes = list(picture.notes)
    if too_many:
        most = count(_MOST_UNFOLDED)
        notes.append(
            f"folded all the same: no one can read {most} boxes and more; a .dot has them all"
        )
    if suffix == ".dot":
        data = dot.to_dot(picture, theme=options.theme).encode()
    else:
        columns = place(picture, options)
        notes += dict.fromkeys(note for column in columns for note in column.notes)
        data, more = ENCODERS[suffix](draw_scene(columns, picture, notes, options.theme))
        notes += more
    if target is not None:
        _write(target, data)
    boxes = sum(box.kind is not BoxKind.STUB for box in picture.boxes)
    return Drawing(boxes, process_time() - begun, tuple(notes), suffix, data)


def to_dot(graphs: Sequence[Graph], options: Options = DEFAULTS) -> str:
    """Return the picture of the graphs as DOT text, for any graphviz."""
    return dot.to_dot(compose(graphs, options), theme=options.theme)


def place(picture: Picture, options: Options = DEFAULTS) -> list[Placed]:
    """Lay a picture out, in several columns when it is tall, within one limit for all."""
    end = monotonic() + options.limit_seconds
    columns = []
    for column in wrap(picture, [size_of(box) for box in picture.boxes]):
        sizes = [size_of(box) for box in column.boxes]
        left = max(0.5, end - monotonic())
        columns.append(lay_out(column, sizes, engine=options.engine, limit_seconds=left))
    return columns


def _chosen(recording: Recording, options: Options, call: int | None) -> tuple[Selection, Options]:
    """Select the graphs; focus a large one on its finding unless the user asks otherwise."""
    chosen = select(recording, call, of_finding=options.focus == "finding")
    asked = options.depth is not None or options.expand or not options.fold
    focus = options.focus or (None if asked else chosen.focus)
    return chosen, replace(options, focus=focus)


def _write(target: Path, data: bytes) -> None:
    try:
        target.write_bytes(data)
    except OSError as problem:
        raise GradscopeError(f"cannot write {target}: {problem.strerror}") from problem
