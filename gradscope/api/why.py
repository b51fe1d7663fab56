"""Answers whether a gradient reaches a tensor, by which lines, and where its path is cut."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.nn import Module

from gradscope.api.watch import room
from gradscope.code import source
from gradscope.collect.tensor_tracer import TensorTracer, followed
from gradscope.collect.walk import Walker, root_node
from gradscope.errors import GradscopeError
from gradscope.fixing.gradient_paths import Arrival, Cut, Paths, Row
from gradscope.fixing.origins import Leaf
from gradscope.model import Site
from gradscope.program.names import parameters_in
from gradscope.program.sites import place_in, user_frames
from gradscope.program.tensors import describe, leaves_of
from gradscope.render.pictures.draw import Drawing
from gradscope.render.pictures.why import draw_way
from gradscope.render.printing import written
from gradscope.render.text.why import print_answer, print_call
from gradscope.rules.base import told
from gradscope.torch_private import DisableTorchFunction

# Cells: the usual width of a terminal, because the text is made before it is known where.
_WIDTH = 80
_UNDER_WAYS = "where ways lead, and are cut, is known only of code run under watch(ways=True)"


class CutPlace(NamedTuple):
    """A place that cuts a path: its line, its operation, the names of the parameters behind it."""

    site: Site | None
    operation: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """Whether a gradient ``arrives``; None if that is not known.

    ``ways`` are the lines of a path from the loss, each with what a gradient does there; ``cuts``
    are the places where paths are cut, None if these are not known. ``str`` is all of it as text; a
    notebook shows the text, and the picture.
    """

    arrives: bool | None
    ways: tuple[Row, ...] = ()
    cuts: tuple[CutPlace, ...] | None = None
    text: str = field(default="", repr=False)
    _drawn: Callable[[Any], Drawing] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text

    def draw(self, file: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the ways, and the cut; the suffix of ``file`` says how: .svg, .png or .dot.

        Raises GradscopeError where the ways are not known, or the file cannot be written.
        """
        if self._drawn is None:
            raise GradscopeError(
                "the ways are not known: run the code under gradscope.watch(ways=True)"
            )
        return self._drawn(file)

    def _repr_mimebundle_(self, **given: Any) -> dict[str, str]:
        shown = {"text/plain": self.text}
        if self._drawn is not None:
            shown["image/svg+xml"] = self.draw().content.decode()
        return shown


def why(x: torch.Tensor | Module, loss: torch.Tensor | None = None) -> Why:
    """Return whether a gradient arrives at a tensor or at the parameters of a module.

    It is asked of the backward calls made so far, or with ``loss`` of one that starts there: none
    is run. Over which lines, and where the way is cut, is known of code that ran under
    ``gradscope.watch(ways=True)``. A tensor that was computed, without a ``loss``, is asked for the
    graph that it has itself, or why it has none.

    Raises GradscopeError for what is neither a tensor nor a module with parameters.
    """
    tensors = [*x.parameters()] if isinstance(x, Module) else [x]
    if not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        raise GradscopeError("gradscope.why takes a tensor, or a module that has parameters")
    if loss is not None and not isinstance(loss, torch.Tensor):
        raise GradscopeError(f"loss is a {type(loss).__name__}: pass a tensor")
    frames = user_frames(sys._getframe(1))
    own, name = _written(frames[0]) if frames else ("x", "loss")
    following = next((f for f in followed if f.can_tell(tensors, loss)), None)
    with DisableTorchFunction():
        if following is None:
            return _of_graph(tensors, own, loss, name, frames)
        script = os.path.abspath(frames[0].f_code.co_filename if frames else "")
        if loss is None and following.is_computed(following.number_of(tensors[0])):
            return _of_root(tensors, own, following, script)
        return _of_ways(tensors, own, loss, name, following, script)


def _written(frame: FrameType) -> tuple[str, str]:
    """Return how the code that asks writes what it asks for, and the loss."""
    call = source.call_at(place_in(frame).site)
    if call is None or source.called_name(call) != why.__name__:
        return "x", "loss"
    given = dict(zip(("x", "loss"), call.args, strict=False))
    given |= {each.arg or "": each.value for each in call.keywords}
    x, loss = (ast.unparse(given[key]) if key in given else key for key in ("x", "loss"))
    return x, loss


def _of_graph(
    tensors: Sequence[torch.Tensor],
    own: str,
    loss: torch.Tensor | None,
    name: str,
    frames: Sequence[FrameType],
) -> Why:
    """Return what the graph of a loss shows by itself."""
    names = {key: name for key, (name, _) in parameters_in(frames).items()}
    wanted = {id(t): names.pop(id(t), own) for t in tensors if t.requires_grad}
    who = told([*wanted.values()], [*names.values()])
    if not wanted:
        return Why(arrives=False, text=f"`{own}`: requires_grad is off")
    if loss is None:
        ask = f"{who}: say from which loss, as why(x, loss=loss)"
        return Why(arrives=None, text=f"{ask}\n{_UNDER_WAYS}")
    walker = Walker(room())
    nodes = walker.walk([root_node(loss)])
    reached = {*map(id, leaves_of(nodes)), *(id(t) for t in tensors if root_node(t) in nodes)}
    reached |= {id(t) for t in tensors if t is loss}
    missing = [n for key, n in wanted.items() if key not in reached]
    if not missing:
        return Why(arrives=True, text=f"edges of `{name}` lead to {who}")
    if walker.left:
        return Why(arrives=None, text=f"the graph of `{name}` is too large to be walked here")
    others = [n for key, n in wanted.items() if key in reached]
    lead = f"no edge of `{name}` leads to {told(missing, [*others, *names.values()])}"
    return Why(arrives=False, text=f"{lead}\n{_UNDER_WAYS}")


def _of_ways(
    tensors: Sequence[torch.Tensor],
    own: str,
    loss: torch.Tensor | None,
    name: str,
    following: TensorTracer,
    script: str,
) -> Why:
    """Return what was followed; ``script`` is the file whose lines are named by number alone."""
    values = [following.number_of(each) for each in tensors]
    use = None if loss is None else following.use_of([loss])
    record = following.record()
    if use is not None:
        record = replace(record, calls=[use], steps=[])
    if following.is_computed(values[0]):
        facts = own, describe(tensors[0]), tensors[0].numel()
        record = record.with_leaf(values[0], Leaf(*facts, requires_grad=True, is_parameter=True))
    ways = Paths(record, asked="" if use is None else name)
    answers = ways.of_leaves(record.origins[value].leaf for value in values)
    states = {each.state for each in answers} - {Arrival.FROZEN}
    cuts = [cut for answer in answers for cut in answer.cuts]
    first = min(answers, key=lambda each: each.state is not Arrival.CUT)
    said = (partial(print_answer, answer, ways, script) for answer in answers)
    arrives = bool(states) and states <= {Arrival.ARRIVES, Arrival.ZERO}
    return _why(ways, arrives, ways.shown(first)[1], cuts, written(*said, width=_WIDTH), first)


def _of_root(
    tensors: Sequence[torch.Tensor], name: str, following: TensorTracer, script: str
) -> Why:
    """Return whether what was computed has a graph, or why it has none."""
    call = following.use_of(tensors)
    ways = Paths(replace(following.record(), calls=[call]))
    cuts = [] if call.has_graph else ways.cuts(call.roots)
    rows = ways.cut_way(cuts[0], call.roots) if cuts else []
    text = written(partial(print_call, call, ways, script, name=name), width=_WIDTH)
    return _why(ways, call.has_graph, rows, cuts, text, call)


def _why(
    ways: Paths, arrives: bool, rows: Sequence[Row], cuts: Iterable[Cut], text: str, asked: Any
) -> Why:
    leaves = ways.record.leaves
    places = tuple(
        CutPlace(cut.site, cut.word, tuple(leaves[n].name for n in sorted(cut.behind)))
        for cut in cuts
    )
    return Why(arrives, tuple(rows), places, text, partial(draw_way, ways, asked))
