"""Of each subset of a graph's tensors as the inputs of a call, ``check`` and a watch say what the engine does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import chain, combinations
from random import Random
from typing import Any, Literal

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

import gradscope
from tests.oracles.conformance.engine import Engine
from tests.property.functions import SaveOutput
from tests.property.rounds import Round, rounds

Kind = Literal["backward", "grad"]
KINDS: tuple[Kind, ...] = ("backward", "grad")
WORDS = {
    "second time": "GS101",
    "modified by an inplace operation": "GS201",
    "its base or another view of its base has been modified inplace": "GS201",
    "appears to not have been used in the graph": "GS505",
}
OPERATIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a.exp(),
    lambda a, b: a * b,
    lambda a, b: a + b,
    lambda a, b: a.sin() - b,
    lambda a, b: torch.stack([a, b]).prod(0),
    lambda a, b: a.unbind()[0] * b,
    lambda a, b: saved(a) * b,
    lambda a, b: assigned(a, b),
]
"""From two tensors of three numbers one more."""


def saved(a: Tensor) -> Tensor:
    result: Tensor = SaveOutput.apply(a)  # type: ignore[no-untyped-call]
    return result


def assigned(a: Tensor, b: Tensor) -> Tensor:
    copied = a.clone()
    copied[1:] = b[1:].exp()
    return copied


def built(draw: Random) -> list[Tensor]:
    """Two leaves, and the tensors made of them."""
    made = [torch.rand(3, requires_grad=True) for _ in range(2)]
    for _ in range(draw.randint(2, 3)):
        made.append(draw.choice(OPERATIONS)(draw.choice(made), draw.choice(made)))
    return made


def run(kind: Kind, roots: list[Any], inputs: list[Any], retain_graph: bool) -> None:
    given = [torch.ones(3) for _ in roots]
    if kind == "backward":
        torch.autograd.backward(roots, given, retain_graph, inputs=inputs or None)
    else:
        torch.autograd.grad(roots, inputs, given, retain_graph)


def damage(made: list[Tensor], draw: Random) -> None:
    """Free a part of the graph, modify a tensor of it in place, or both."""
    for _ in range(draw.randint(0, 2)):
        tensor = draw.choice(made[2:])
        if draw.random() < 0.5:
            tensor.detach().mul_(2)
            continue
        try:
            run(draw.choice(KINDS), [tensor], [draw.choice(made)], retain_graph=False)
        except RuntimeError as error:
            assert code_of(error)


def code_of(error: RuntimeError) -> str:
    return next((code for words, code in WORDS.items() if words in str(error)), "")


def subsets(made: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    return chain.from_iterable(combinations(made, n) for n in range(1, len(made) + 1))


def as_edge(tensor: Tensor, draw: Random) -> Tensor | GradientEdge:
    return get_gradient_edge(tensor) if draw.random() < 0.3 else tensor


def compare(draw: Random) -> Iterator[str]:
    """Ask of every call on a graph what it would raise, and yield what it does raise."""
    made = built(draw)
    damage(made, draw)
    roots = [as_edge(t, draw) for t in made[draw.choice((-1, -2)) :]]
    for subset in subsets(made):
        inputs = [as_edge(t, draw) for t in subset]
        for kind in KINDS:
            checked = {f.code for f in gradscope.check(*roots, inputs=inputs, kind=kind)}
            raised = set()
            try:
                run(kind, roots, inputs, retain_graph=True)
            except RuntimeError as error:
                raised = {code_of(error) or str(error)}
            assert checked == raised, (kind, inputs)
            yield next(iter(raised), "")


@pytest.mark.parametrize("watched", ["unwatched", "hooks", "no-hooks"])
@rounds
def test_check_and_a_watch_say_what_the_engine_does(programs_of: Round, watched: str) -> None:
    met: Counter[str] = Counter()

    def in_a_watch(number: int) -> None:
        engine = Engine()
        watch = gradscope.watch(hooks=watched == "hooks")
        with nullcontext() if watched == "unwatched" else engine.in_force(), ExitStack() as stack:
            if watched != "unwatched":
                stack.enter_context(watch)
            met.update(compare(Random(number)))
        assert not engine.wrong + engine.failures
        assert [each for each in engine.raised if not each.announced] == []

    programs_of.try_out(in_a_watch, 60, number=st.integers(0, 2**32 - 1))
    assert met[""]
    assert met["GS101"] + met["GS201"]
    assert met["GS505"]
