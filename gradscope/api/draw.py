"""`draw` and `to_dot`: the backward graph of live tensors as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from gradscope.api.graphs import snapshot
from gradscope.model import Graph
from gradscope.render.pictures import dot
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import Drawing, draw_graphs
from gradscope.render.pictures.picture import DrawOptions, Options

if TYPE_CHECKING:
    import torch
    from torch.autograd.graph import GradientEdge

    Drawable = torch.Tensor | GradientEdge | Graph


def draw(
    *roots: Drawable, file: str | os.PathLike[str] | None = None, **options: Unpack[DrawOptions]
) -> Drawing:
    """Draw the backward graph of one or more tensors in one picture, shared nodes drawn once.

    ``roots`` are tensors, ``GradientEdge`` objects, or graphs that ``snapshot`` gave; freed graphs
    are drawn as well. ``file`` ends in .svg, .png, .pdf or .dot; without one the drawing shows
    itself in a notebook. The options:

    * ``focus``: ``shared``, the name of a node, module, leaf or root, or what a fold shows behind
      ``open:``;
    * ``depth`` folds the calls of modules at this depth of their path;
    * ``fold=False`` draws every node;
    * ``sites=True`` adds the source lines.

    Raises GradscopeError for a tensor without a graph, an unknown suffix, or a file that cannot be
    written.

    Example::

        gradscope.draw(loss_a, loss_b, file="shared.svg")
    """
    return draw_graphs(_graphs(roots), file, Options(**options))


def to_dot(*roots: Drawable, **options: Unpack[DrawOptions]) -> str:
    """Return the picture as DOT text, for any graphviz; roots and options are those of ``draw``.

    Raises GradscopeError for a tensor without a graph.
    """
    return dot.to_dot(compose(_graphs(roots), Options(**options)))


def _graphs(roots: Sequence[Drawable]) -> list[Graph]:
    """Return the graphs among the roots, then one of all the tensors, which is looked at now."""
    graphs = [root for root in roots if isinstance(root, Graph)]
    live = [root for root in roots if not isinstance(root, Graph)]
    if live or not roots:
        graphs.append(snapshot(*live))
    return graphs
