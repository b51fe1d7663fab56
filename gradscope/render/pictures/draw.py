"""Draws graphs, or those of a recording, in the format that the file's suffix names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradscope.errors import GradscopeError
from gradscope.model import Graph, Recording
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.dot import to_dot as dot_of
from gradscope.render.pictures.formats import ENCODERS, check_suffix
from gradscope.render.pictures.options import DEFAULTS, Options
from gradscope.render.pictures.picture import UNMARKED, Marking
from gradscope.render.pictures.selection import select
from gradscope.render.pictures.svg import to_svg


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

    Without ``call`` it is the one of the gravest finding, or else the last. The focus may also be
    ``finding``.
    """
    chosen = select(recording, call, of_finding=options.focus == "finding")
    asked = options.depth is not None or not options.fold
    # A large one is focused on its finding unless the user asks otherwise.
    focus = options.focus or (None if asked else chosen.focus)
    return draw_graphs(chosen.graphs, file, replace(options, focus=focus), chosen.marks)


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
    target = None if file is None else Path(file)
    suffix = ".svg" if target is None else target.suffix.lower()
    check_suffix(suffix)
    if not any(graph.nodes for graph in graphs):
        raise GradscopeError(
            "there is nothing to draw: the graph has no node (does the tensor require grad?)"
        )
    picture = compose(graphs, options, marks)
    more: list[str] = []
    if suffix == ".dot":
        data = dot_of(picture).encode()
    else:
        data, more = ENCODERS[suffix](to_svg(picture))
    if target is not None:
        try:
            target.write_bytes(data)
        except OSError as problem:
            raise GradscopeError(f"cannot write {target}: {problem.strerror}") from problem
    notes = (*picture.notes, *more)
    return Drawing(len(picture.boxes), notes, suffix, data)


def to_dot(graphs: Sequence[Graph], options: Options = DEFAULTS) -> str:
    """Return the picture of the graphs as DOT text, for any graphviz."""
    return dot_of(compose(graphs, options))
