"""Checks the arguments of a backward call: roots that have no graph, and inputs that no graph
reaches, also if zeros take the place of their gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType

import torch

from gradscope.code import source, statements
from gradscope.collect.backward import Evidence
from gradscope.collect.calls import Call, EngineCall
from gradscope.collect.inspection import Inspection
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.model import Finding, Site
from gradscope.program.names import entries_of, names_in, parameters_in
from gradscope.program.sites import USER, classify, user_frames
from gradscope.program.tensors import TensorRef, describe, is_zero, leaves_of, memory_of
from gradscope.program.variables import variables
from gradscope.rules import gs501, gs505

# Inputs of one call that a finding describes: the text names four, the JSON report all.
_MOST_NAMED = 1_000
_GRAD = getattr(torch.autograd.grad, "__code__", None)


def no_graph(evidence: Evidence) -> gs501.NoGraph:
    """Return what is known of the roots of a call that have no graph."""
    asked, frames = _asked(evidence), user_frames(sys._getframe(1))
    roots = [asked.outputs[i] for i in evidence.look.bare]
    names = names_in(frames[0], roots) if frames else [None] * len(roots)
    site = evidence.call.record.site
    bare = (_bare(*pair, site) for pair in zip(roots, names, strict=True))
    return gs501.NoGraph(evidence.call.record, tuple(bare), len(asked.outputs), script())


def _bare(root: torch.Tensor, name: str | None, site: Site | None) -> gs501.Bare:
    made = None if name is None or site is None else statements.binding(site, name)
    return gs501.Bare(
        name,
        describe(root),
        None if made is None or site is None else source.of_node(made, site.file, site.function),
        is_inference=root.is_inference(),
        is_discrete=not (root.is_floating_point() or root.is_complex()),
    )


def unused(evidence: Evidence, which: Sequence[int]) -> gs505.Unreached:
    """Return what is known of these inputs of a call."""
    asked, frames = _asked(evidence), user_frames(sys._getframe(1))
    outputs = names_in(frames[0], asked.outputs) if frames else ()
    names, written = evidence.state.names, _written(frames[:1])
    names.learn_variables(frames)
    inputs = (
        gs505.Input(
            i,
            written.get(id(each)),
            names.of_tensor(each) if isinstance(each, torch.nn.Parameter) else None,
            describe(each) if isinstance(each, torch.Tensor) else "GradientEdge",
        )
        for i, each in ((i, asked.inputs[i]) for i in which[:_MOST_NAMED])
    )
    return gs505.Unreached(
        evidence.call.record,
        tuple(inputs),
        tuple(filter(None, outputs)),
        of=len(asked.inputs),
        needs_grad=bool(evidence.look.constant),
    )


class Materialized(Observer):
    """Announces GS505 where the zeros of ``materialize_grads=True``, of the first call at a line,
    enter a loss that is run backward.
    """

    def __init__(self, watch: State) -> None:
        self._watch = watch
        self._zeros: dict[Site | None, tuple[gs505.Unreached, Sequence[TensorRef]]] = {}
        """By the line that asks for gradients what it will not get, and the leaves before that."""

    def before_call(
        self, call: Call, look: Inspection, frame: FrameType | None
    ) -> Iterator[Finding]:
        """Note the zeros that a call will give, or look for those of earlier calls."""
        asked, place = look.asked, call.record.site
        if asked is None or look.left:
            return
        if asked.accumulates:
            leaves = leaves_of(look.nodes) if self._zeros else []
            for facts, others in self._zeros.values():
                if any(_is_zeros(leaf, facts, others) for leaf in leaves):
                    yield gs505.finding(facts._replace(loss=call.record))
        elif asked.create_graph and place not in self._zeros and _materializes():
            which = asked._replace(allows_unused=False).unused(look.nodes)
            there = [tensor for _, tensor in parameters_in(user_frames(frame)).values()]
            there += [each for each in asked.inputs if isinstance(each, torch.Tensor)]
            facts = unused(Evidence(self._watch, call, look, None), which)
            self._zeros[place] = facts, [*map(TensorRef, there)]


def _is_zeros(leaf: torch.Tensor, facts: gs505.Unreached, others: Sequence[TensorRef]) -> bool:
    """Return whether a leaf is zeros for an input that nothing reaches, and none of the others."""
    is_alike = type(leaf) is torch.Tensor and describe(leaf) in {i.label for i in facts.inputs}
    is_new = is_alike and all(ref() is not leaf for ref in others)
    memory = memory_of(leaf) if is_new else None
    return memory is not None and is_zero(memory)


def _materializes() -> bool:
    """Return whether the innermost ``autograd.grad`` makes zeros of what the engine leaves out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _GRAD:
        frame = frame.f_back
    return frame is not None and bool(frame.f_locals.get("materialize_grads"))


def _asked(evidence: Evidence) -> EngineCall:
    asked = evidence.look.asked
    assert asked is not None
    return asked


def _written(frames: Sequence[FrameType]) -> dict[int, str]:
    """Return by identity how the code of a frame writes its tensors, and those in its lists and
    dicts.
    """
    found: dict[int, str] = {}
    for name, value in (pair for frame in frames for pair in variables(frame)):
        for text, each in ((name, value), *entries_of(name, value)):
            if issubclass(type(each), torch.Tensor):
                found.setdefault(id(each), text)
    return found


def script() -> str:
    """Return the file of the program that runs; empty where it is none that can be run again."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    is_module = getattr(main, "__spec__", None) is not None
    is_user = isinstance(file, str) and not is_module and classify(file) == USER
    return str(file) if is_user else ""
