"""What an in-place operation on a view saves is found, though torch hides the node that saved it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
import torch.utils.checkpoint
from in_threads import with_low_numbers
from test_freed_unseen import certain

import gradscope
from gradscope.torch_private import next_sequence_nr
from tests.property.functions import InPlace, InPlaceSaved, SaveInput

pytestmark = pytest.mark.usefixtures("little_is_read_ahead")
OnTensor = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize("before", ["nothing", "the base was changed", "the view was changed"])
def test_a_view_multiplied_by_itself_in_place_is_called(before: str) -> None:
    """torch saves the view as it is and a clone of it, and wraps the node into CopySlices."""
    base = torch.randn(3, 3, requires_grad=True) * 1
    if before == "the base was changed":
        base.add_(1)
    view = base[1:]
    if before == "the view was changed":
        view.add_(1)
    with gradscope.watch() as scope:
        view.mul_(view)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            view.sum().backward()
    assert certain(scope) == [("GS201", False)]


@pytest.mark.parametrize("change", ["the result", "the base"])
def test_what_a_function_on_a_view_saved_is_known_to_be_stale(change: str) -> None:
    base = torch.ones(4, requires_grad=True) * 2
    with gradscope.watch() as scope:
        result = InPlaceSaved.apply(base[:2])  # type: ignore[no-untyped-call]
        (result if change == "the result" else base).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    assert certain(scope) == [("GS201", False)]


@pytest.mark.parametrize("first", [True, False])
def test_what_a_function_next_to_a_view_saved_is_not_blamed_on_it(first: bool) -> None:
    leaf = torch.ones(4, requires_grad=True)
    with gradscope.watch() as scope:
        saved, base = leaf * 1, leaf * 2
        view = base[:2]
        if first:
            other = SaveInput.apply(saved, 1.0)  # type: ignore[no-untyped-call]
        view.mul_(2)
        if not first:
            other = SaveInput.apply(saved, 1.0)  # type: ignore[no-untyped-call]
        saved.add_(1)
        base.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            other.sum().backward()
    certain = [finding for finding in scope.findings if finding.certainty == "certain"]
    assert [(finding.code, finding.backward_call) for finding in certain] == [("GS201", 2)]


def test_what_a_checkpoint_next_to_a_view_saved_is_not_blamed_on_it() -> None:
    leaf = torch.ones(4, requires_grad=True)
    with gradscope.watch() as scope:
        given, base = leaf * 1, leaf * 2
        view = base[:2]
        view.mul_(2)
        kept = torch.utils.checkpoint.checkpoint(torch.exp, given, use_reentrant=False)
        given.add_(1)
        base.sum().backward()
    assert kept.requires_grad
    assert [finding for finding in scope.findings if finding.certainty == "certain"] == []


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("change", [lambda view: view.add_(1), InPlace.apply])
@with_low_numbers
def test_what_this_thread_saved_is_not_blamed_on_a_view_of_another_thread(
    change: Callable[[torch.Tensor], object], saves: bool
) -> None:
    """Each thread numbers its nodes from zero: two may have the same number."""
    leaf = torch.ones(4, requires_grad=True)

    def build(number: int) -> torch.Tensor:
        base = leaf * torch.ones(4) if saves else leaf + 1
        while next_sequence_nr() < number:
            base = base + 1
        change(base[:2])
        return base

    with gradscope.watch() as scope:
        with ThreadPoolExecutor() as pool:
            base = pool.submit(build, next_sequence_nr() + 20).result()
        given = leaf * 1
        assert base.grad_fn is not None
        while next_sequence_nr() < base.grad_fn._sequence_nr():
            given = given + 1
        saved = given.sin()
        given.add_(1)
        base.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.sum().backward()
    assert certain(scope) == [("GS201", False)]
    assert [each.backward_call for each in scope.findings if each.code == "GS201"] == [2]


@pytest.mark.parametrize("hooks", [True, False, None])
def test_a_view_that_torch_refuses_to_use_any_more_is_told_of_in_its_words(
    hooks: bool | None,
) -> None:
    """A view of one of several views: torch names it before it compares versions."""
    with nullcontext() if hooks is None else gradscope.watch(hooks=hooks) as scope:
        factor = torch.ones(4, 4, requires_grad=True)
        _, second = (factor * 2).chunk(2)
        product = factor.exp() @ second.T
        with torch.no_grad():
            second.add_(1)
        assert [finding.code for finding in gradscope.check(product.sum())] == ["GS201"]
        with pytest.raises(RuntimeError, match=r"^Output 0 of .* is a view and its base"):
            product.sum().backward()
    if scope is not None:
        assert certain(scope) == [("GS201", False)]


def of_several(x: torch.Tensor) -> torch.Tensor:
    return x.unbind()[1]


def of_a_function(x: torch.Tensor) -> torch.Tensor:
    class View(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1)[:3]

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return torch.cat([grad, torch.zeros(3)]).view(2, 3)

    view: torch.Tensor = View.apply(x)  # type: ignore[no-untyped-call]
    return view


@torch.no_grad()
def without_grad(x: torch.Tensor) -> torch.Tensor:
    return x[1]


def multiplied(view: torch.Tensor) -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * view


def listed(view: torch.Tensor) -> torch.Tensor:
    factors = [torch.ones(3, requires_grad=True) for _ in range(2)]
    return torch._foreach_mul(factors, [torch.ones(3), view])[0]


def shown_in_a_list(view: torch.Tensor) -> torch.Tensor:
    factors = [torch.ones(3, requires_grad=True) for _ in range(2)]
    return torch._foreach_div(factors, [torch.ones(3), view])[0]


@pytest.mark.full(but=18)
@pytest.mark.parametrize("hooks", [True, False, None])
@pytest.mark.parametrize("use", [multiplied, listed, shown_in_a_list])
@pytest.mark.parametrize("view", [of_several, of_a_function, without_grad])
@pytest.mark.parametrize("change", ["the base", "the base's data"])
def test_a_view_that_torch_refuses_is_told_of_however_it_was_made_and_saved(
    hooks: bool | None, use: OnTensor, view: OnTensor, change: str
) -> None:
    """Of a list torch unpacks all, whatever the call needs; what is changed unseen it does not refuse."""
    with nullcontext() if hooks is None else gradscope.watch(hooks=hooks) as scope:
        base = torch.ones(2, 3, requires_grad=True) * 2
        loss = use(view(base)).sum()
        (base if change == "the base" else base.data).mul_(2)
        found = [finding.code for finding in gradscope.check(loss)]
        try:
            loss.backward()
        except RuntimeError as error:
            assert "and its base or another view of its base has been modified inplace" in str(
                error
            )
            assert found == ["GS201"]
        else:
            assert found == []
    if scope is not None:
        assert certain(scope) == [("GS201", False)] * len(found)


@pytest.mark.parametrize("hooks", [True, False])
def test_of_several_saved_tensors_the_one_that_was_changed_is_named(hooks: bool) -> None:
    with gradscope.watch(hooks=hooks) as scope:
        first, second = (torch.ones(n, requires_grad=True) * 2 for n in (2, 3))
        tops = [torch.ones(n, requires_grad=True) for n in (2, 3)]
        loss = torch._foreach_div(tops, [first, second])[0].sum()
        second.mul_(2)
        with pytest.raises(RuntimeError, match=r"FloatTensor \[3\]"):
            loss.backward()
    (finding,) = [each for each in scope.findings if each.code == "GS201"]
    assert [str(saved).split()[-1] for saved in finding.saved] == ["f32[3]"]
