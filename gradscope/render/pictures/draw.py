"""Draws live graphs, graphs as plain data, or those of a recording, in the format that the file's suffix names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, TypedDict, Unpack

from gradscope.errors import GradscopeError
from gradscope.model import Graph, Recording
from gradscope.render.pictures import dot
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.folding import Options
from gradscope.render.pictures.image import check_suffix, encode
from gradscope.render.pictures.layout import Placed, available_engine, lay_out_columns
from gradscope.render.pictures.picture import BoxKind, Picture
from gradscope.render.pictures.scene import draw_scene, size_of
from gradscope.render.pictures.selection import Selection, select
from gradscope.render.pictures.tree import graph_tree
from gradscope.render.pictures.wrapping import wrap
from gradscope.units import count

if TYPE_CHECKING:
    import torch
    from rich.tree import Tree
    from torch.autograd.graph import GradientEdge

    Drawable = torch.Tensor | GradientEdge | Graph

_MOST_UNFOLDED = 20_000


class DrawOptions(TypedDict, total=False):
    """What all ways to draw understand; ``draw`` says what each means."""

    focus: str | None
    depth: int | None
    expand: Sequence[str]
    fold: bool
    sites: bool
    engine: str
    theme: str
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """What was drawn: the number of boxes, the CPU seconds it took, and what the reader should know about it.

    ``content`` is the picture, in the format of ``suffix``. A notebook shows a drawing in SVG by itself.
    """

    boxes: int
    seconds: float
    notes: tuple[str, ...] = ()
    suffix: str = ".svg"
    content: bytes = field(default=b"", repr=False)

    def _repr_svg_(self) -> str | None:
        return self.content.decode() if self.suffix == ".svg" else None


def draw(
    *roots: Drawable,
    file: str | os.PathLike[str] | None = None,
    focus: str | None = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    fold: bool = True,
    sites: bool = False,
    engine: str = "auto",
    theme: str = "light",
    limit_seconds: float = 10.0,
) -> Drawing:
    """Draw the backward graph of one or more tensors in one picture, the nodes that they share drawn once.

    ``roots`` are tensors, ``GradientEdge`` objects, or graphs that ``snapshot`` gave; freed graphs are drawn as well.
    ``file`` ends in .svg, .png, .pdf or .dot; without one the drawing shows itself in a notebook.

    ``focus`` is ``shared``, or the name of a node, module, leaf or root; ``depth`` folds the calls of modules at this
    depth of their path; ``expand`` opens what a fold shows behind ``open:``; ``fold=False`` draws every node. ``sites``
    adds the source lines. ``engine`` is ``auto``, ``wasm``, ``dot`` or ``simple``, ``theme`` is ``light`` or ``dark``.
    A layout that takes longer than ``limit_seconds`` is given up for a simpler one.

    Raises GradscopeError for a tensor without a graph, an unknown suffix, a file that cannot be written.

    Example::

        gradscope.draw(loss_a, loss_b, file="shared.svg")
    """
    return draw_graphs(
        _graphs(roots),
        file,
        focus=focus,
        depth=depth,
        expand=expand,
        fold=fold,
        sites=sites,
        engine=engine,
        theme=theme,
        limit_seconds=limit_seconds,
    )


def to_dot(
    *roots: Drawable,
    focus: str | None = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    fold: bool = True,
    sites: bool = False,
    theme: str = "light",
) -> str:
    """The picture of one or more tensors or graphs as DOT text, for any graphviz; the options are those of ``draw``."""
    options = Options(focus, depth, tuple(expand), fold)
    return dot.to_dot(compose(_graphs(roots), options, sites=sites), theme=theme)


def draw_recording(
    recording: Recording,
    file: str | os.PathLike[str] | None = None,
    *,
    call: int | None = None,
    **options: Unpack[DrawOptions],
) -> Drawing:
    """Draw the graph that a backward call met, with those of earlier calls that share nodes with it.

    Without ``call`` it is the one of the gravest finding, or else the last. ``focus`` may also be ``finding``.
    """
    chosen = select(recording, call, of_finding=options.get("focus") == "finding")
    options["focus"] = _focus(chosen, options)
    return draw_graphs(
        chosen.graphs,
        file,
        failing=chosen.failing,
        highlight=chosen.highlight,
        moment=chosen.moment,
        **options,
    )


def recording_tree(
    recording: Recording,
    *,
    call: int | None = None,
    plain_ascii: bool = False,
    **options: Unpack[DrawOptions],
) -> Tree:
    """The same graphs as a tree for the terminal; ``engine``, ``theme`` and ``limit_seconds`` mean nothing here."""
    chosen = select(recording, call, of_finding=options.get("focus") == "finding")
    folding = Options(
        _focus(chosen, options),
        options.get("depth"),
        tuple(options.get("expand", ())),
        options.get("fold", True),
        chosen.failing,
        chosen.highlight,
    )
    sites = options.get("sites", False)
    return graph_tree(
        chosen.graphs, folding, sites=sites, moment=chosen.moment, plain_ascii=plain_ascii
    )


def draw_graphs(
    graphs: Sequence[Graph],
    file: str | os.PathLike[str] | None,
    *,
    focus: str | None = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    fold: bool = True,
    sites: bool = False,
    failing: int | None = None,
    highlight: Sequence[int] = (),
    moment: str = "",
    engine: str = "auto",
    theme: str = "light",
    limit_seconds: float = 10.0,
) -> Drawing:
    """Draw one graph, or several in one picture with the nodes they share drawn once; the rest is as in ``draw``.

    ``failing`` is the index of the node at which a backward call stops, ``highlight`` are those of a finding (both in
    the last graph); ``focus`` may be ``finding`` then. ``moment`` says in words when the graphs looked so.
    """
    begun = process_time()
    target = None if file is None else Path(file)
    suffix = ".svg" if target is None else target.suffix.lower()
    check_suffix(suffix)
    if theme not in ("light", "dark"):
        raise GradscopeError(f"no theme is called {theme!r}: use light or dark")
    if not any(graph.nodes for graph in graphs):
        raise GradscopeError(
            "there is nothing to draw: the graph has no node (does the tensor require grad?)"
        )
    available_engine(engine)
    too_many = (
        not fold and suffix != ".dot" and sum(len(graph.nodes) for graph in graphs) > _MOST_UNFOLDED
    )
    options = Options(focus, depth, tuple(expand), fold or too_many, failing, tuple(highlight))
    picture = compose(graphs, options, sites=sites, moment=moment)
    notes = list(picture.notes)
    if too_many:
        notes.append(
            f"folded all the same: no one can read {count(_MOST_UNFOLDED)} boxes and more; a .dot has them all"
        )
    if suffix == ".dot":
        data = dot.to_dot(picture, theme=theme).encode()
    else:
        columns = place(picture, engine=engine, limit_seconds=limit_seconds)
        notes += dict.fromkeys(note for column in columns for note in column.notes)
        data, more = encode(draw_scene(columns, picture, notes, theme), suffix)
        notes += more
    if target is not None:
        _write(target, data)
    boxes = sum(box.kind is not BoxKind.STUB for box in picture.boxes)
    return Drawing(boxes, process_time() - begun, tuple(notes), suffix, data)


def place(picture: Picture, *, engine: str = "auto", limit_seconds: float = 10.0) -> list[Placed]:
    """Lay a picture out, in several columns when it is tall."""
    columns = wrap(picture, [size_of(box) for box in picture.boxes])
    sizes = [[size_of(box) for box in column.boxes] for column in columns]
    return lay_out_columns(columns, sizes, engine=engine, limit_seconds=limit_seconds)


def _focus(chosen: Selection, options: DrawOptions) -> str | None:
    """What the user asked to see; of a large graph with a finding that he asked nothing of, the finding."""
    asked = (
        options.get("depth") is not None or options.get("expand") or not options.get("fold", True)
    )
    return options.get("focus") or (None if asked else chosen.focus)


def _graphs(roots: Sequence[Drawable]) -> list[Graph]:
    """Graphs as they were given, then that of all tensors, which is looked at now."""
    graphs = [root for root in roots if isinstance(root, Graph)]
    live = [root for root in roots if not isinstance(root, Graph)]
    if live or not roots:
        from gradscope.api.snapshot import snapshot

        graphs.append(snapshot(*live))
    return graphs


def _write(target: Path, data: bytes) -> None:
    try:
        target.write_bytes(data)
    except OSError as problem:
        raise GradscopeError(f"cannot write {target}: {problem.strerror}") from problem
