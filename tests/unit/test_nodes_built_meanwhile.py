"""torch may build other nodes between a node and what it saves: of clones, of renewed views, within a Function."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradscope
from gradscope.collect.marks import Packed

LEAF = torch.full((3, 3), 0.5, requires_grad=True)
OTHER = torch.full((3, 3), 1.5, requires_grad=True)
ROWS = torch.tensor([0, 1])


class BuildsWithin(torch.autograd.Function):
    """Builds nodes of its own before it saves its result and its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            (x.detach().requires_grad_() * 2).exp()
        result = x.exp()
        ctx.save_for_backward(result, x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = ctx.saved_tensors[0]
        return gradients[0] * result


def renewed() -> Tensor:
    base = LEAF.clone()
    view = base[0]
    base.mul_(2)  # so torch builds the view's node again when it is used
    return view


def foreach() -> Tensor:
    tensors = [LEAF.clone(), OTHER.clone()]
    torch._foreach_exp_(tensors)
    return tensors[0]


def on_a_view() -> Tensor:
    base = LEAF.clone()
    base[0].cumprod_(0)
    return base


SAVING_THEIR_RESULT: dict[str, Callable[[], Tensor]] = {
    "cumprod_": lambda: LEAF.clone().cumprod_(0),
    "copysign_": lambda: LEAF.clone().copysign_(OTHER),
    "pow_": lambda: LEAF.clone().pow_(OTHER),
    "float_power_": lambda: LEAF.double().float_power_(OTHER.double()),
    "hypot_": lambda: LEAF.clone().hypot_(OTHER),
    "index_reduce_": lambda: LEAF.clone().index_reduce_(0, ROWS, OTHER[:2], "amax"),
    "of a renewed view": lambda: renewed().exp(),
    "a Function": lambda: BuildsWithin.apply(LEAF * 1),  # type: ignore[no-untyped-call]
    "foreach": foreach,
    "a list": lambda: torch._foreach_norm([LEAF * 1, OTHER * 1])[0],
    "on a view": on_a_view,
}
RESULTS = pytest.mark.parametrize("make", SAVING_THEIR_RESULT.values(), ids=SAVING_THEIR_RESULT)


def alive() -> int:
    return sum(isinstance(one, Packed) for one in gc.get_objects())


def outcome(result: Tensor) -> list[str]:
    """Let the engine answer what check has said."""
    try:
        result.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return ["GS201"]
    return []


@RESULTS
def test_a_result_that_is_saved_dies_with_its_graph(make: Callable[[], Tensor]) -> None:
    before = alive()
    with gradscope.watch():
        result = make()
        reference = weakref.ref(result)
        del result
        assert reference() is None
        assert alive() == before


@RESULTS
@pytest.mark.parametrize("deed", ["nothing", "written", "run before"])
def test_what_is_said_of_a_result_is_what_the_engine_does(
    make: Callable[[], Tensor], deed: str
) -> None:
    with gradscope.watch() as scope:
        result = make()
        if deed == "written":
            with torch.no_grad():
                result.add_(1)
        if deed == "run before":
            result.sum().backward()
            assert [hazard.code for hazard in gradscope.check(result)] == ["GS101"]
            with pytest.raises(RuntimeError, match="a second time"):
                result.sum().backward()
        else:
            said = [hazard.code for hazard in gradscope.check(result)]
            assert said == outcome(result)
    assert not [finding for finding in scope.findings if finding.missed]


SAVING_AN_ARGUMENT: dict[str, Callable[[Tensor], Tensor]] = {
    "beside a renewed view": lambda given: renewed() * given,
    "beside two": lambda given: renewed() * given * renewed(),
    "after a clone": lambda given: (
        LEAF[:2].clone().index_reduce_(0, ROWS, torch.stack([given, given]), "amax")
    ),
    "a view of two": lambda given: given.sin() * (renewed().view(3) * given),
}


@pytest.mark.parametrize("use", SAVING_AN_ARGUMENT.values(), ids=SAVING_AN_ARGUMENT)
@pytest.mark.parametrize("written", [False, True])
def test_what_is_saved_beside_is_told_of_the_node_that_saved_it(
    use: Callable[[Tensor], Tensor], written: bool
) -> None:
    before = alive()
    with gradscope.watch() as scope:
        given = torch.ones(3, requires_grad=True)
        result = use(given)
        if written:
            with torch.no_grad():
                given.add_(1)
        said = [hazard.code for hazard in gradscope.check(result)]
        assert said == outcome(result)
        del result, given
        LEAF.sum().backward()  # what an error left in its queue the engine drops at the next call
        assert alive() == before
    assert not [finding for finding in scope.findings if finding.missed]


class SavesItsArgument(torch.autograd.Function):
    """Tells whether it gets back the very tensor that it has saved."""

    given: Tensor | None = None
    was_given_back = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        SavesItsArgument.given = x
        result = x.exp()
        ctx.save_for_backward(result, x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = ctx.saved_tensors[0]
        x = ctx.saved_tensors[1]
        SavesItsArgument.was_given_back = x is SavesItsArgument.given
        return gradients[0] * result


class SavesNothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


MADE_BY: dict[str, Callable[[], Tensor]] = {
    "the same Function": lambda: SavesItsArgument.apply(LEAF * 1),  # type: ignore[no-untyped-call]
    "another": lambda: SavesNothing.apply(LEAF * 1),  # type: ignore[no-untyped-call]
    "an operation": lambda: LEAF.exp(),
    "one that saved one of two": lambda: (LEAF * 2).mul_(OTHER.detach()),
    "a renewed view": renewed,
}


@pytest.mark.parametrize("make", MADE_BY.values(), ids=MADE_BY)
def test_an_argument_is_given_back_as_it_is_whoever_made_it(make: Callable[[], Tensor]) -> None:
    with gradscope.watch():
        argument = make()
        result = SavesItsArgument.apply(argument)  # type: ignore[no-untyped-call]
        SavesItsArgument.given, SavesItsArgument.was_given_back = argument, False
        torch.autograd.grad(result.sum(), argument)
    SavesItsArgument.given = None
    assert SavesItsArgument.was_given_back
