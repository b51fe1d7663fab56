"""Of each subset of a graph's tensors as the inputs of a call, ``check`` and a watch say what the engine does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import chain, combinations
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


def built(steps: list[tuple[int, int, int]]) -> list[Tensor]:
    """Two leaves, and the tensors made of them."""
    made = [torch.rand(3, requires_grad=True) for _ in range(2)]
    for operation, i, j in steps:
        picked = made[i % len(made)], made[-1 - j % len(made)]
        made.append(OPERATIONS[operation % len(OPERATIONS)](*picked))
    return made


def run(kind: Kind, roots: list[Any], inputs: list[Any], retain_graph: bool) -> None:
    given = [torch.ones(3) for _ in roots]
    if kind == "backward":
        torch.autograd.backward(roots, given, retain_graph, inputs=inputs or None)
    else:
        torch.autograd.grad(roots, inputs, given, retain_graph, allow_unused=True)


def damage(made: list[Tensor], how: list[tuple[int, int, int]]) -> None:
    """Free parts of the graph, and modify tensors of it in place."""
    for what, i, j in how:
        tensor, other = made[2 + i % (len(made) - 2)], made[j % len(made)]
        if what % 4 < 2:
            try:
                run(KINDS[what % 4], [tensor], [other], retain_graph=False)
            except RuntimeError as error:
                assert code_of(error)
        else:
            tensor.detach().mul_(2)


def code_of(error: RuntimeError) -> str:
    return next((code for words, code in WORDS.items() if words in str(error)), "")


def subsets(made: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    return chain.from_iterable(combinations(made, n) for n in range(1, len(made) + 1))


def as_edge(tensor: Tensor, wanted: bool) -> Tensor | GradientEdge:
    return get_gradient_edge(tensor) if wanted else tensor


def compare(
    steps: list[tuple[int, int, int]], how: list[tuple[int, int, int]], edges: int
) -> Iterator[str]:
    """Ask of every call on a graph what it would raise, and yield what it does raise."""
    made = built(steps)
    damage(made, how)
    roots = [as_edge(t, bool(edges & 1)) for t in made[-1 - edges % 3 % 2 :]]
    for subset in subsets(made):
        inputs = [as_edge(t, bool(edges >> place & 1)) for place, t in enumerate(subset)]
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
    number = st.integers(0, 7)
    triple = st.tuples(number, number, number)
    met: Counter[str] = Counter()

    def in_a_watch(**drawn: Any) -> None:
        engine = Engine()
        watch = gradscope.watch(hooks=watched == "hooks")
        with nullcontext() if watched == "unwatched" else engine.in_force(), ExitStack() as stack:
            if watched != "unwatched":
                stack.enter_context(watch)
            met.update(compare(**drawn))
        assert not engine.wrong + engine.failures
        assert [each for each in engine.raised if not each.announced] == []

    programs_of.try_out(
        in_a_watch,
        60,
        steps=st.lists(triple, min_size=2, max_size=4),
        how=st.lists(triple, max_size=3),
        edges=st.integers(0, 127),
    )
    assert met[""]
    assert met["GS101"] + met["GS201"]
