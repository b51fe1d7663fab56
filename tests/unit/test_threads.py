"""Threads, each with its graphs: torch numbers the nodes of each thread from zero."""

from __future__ import annotations

import threading

import pytest
import torch
from in_threads import in_a_thread, with_low_numbers

import gradscope
from gradscope.torch_private import next_sequence_nr


def test_a_stale_graph_of_one_thread_is_not_blamed_on_another() -> None:
    """Both threads build nodes of the same numbers; the tensor that changes is saved by the second one's."""
    with gradscope.watch() as scope:
        bases = [torch.ones(3, requires_grad=True) * 1 for _ in range(2)]
        losses: dict[int, torch.Tensor] = {}
        built = [threading.Event(), threading.Event()]
        changed = threading.Event()

        def work(which: int) -> None:
            if which == 1:
                built[0].wait(10)
            losses[which] = (bases[which].exp() * bases[which]).sum()
            built[which].set()
            if which == 0:
                changed.wait(10)
                losses[0].backward()

        threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        built[1].wait(10)
        with torch.no_grad():
            bases[1].add_(1)
        changed.set()
        for thread in threads:
            thread.join()
        assert not scope.findings
        assert scope.summary.backward_calls == 1


def test_a_new_thread_is_not_taken_for_one_that_has_ended() -> None:
    """Python gives it the same identity, and torch counts its nodes from zero again."""
    leaf = torch.ones(3, requires_grad=True)
    kept: list[torch.Tensor] = []

    def keep() -> None:
        (changed,) = torch._foreach_exp([leaf])  # shows nothing of what it saved
        kept.extend((changed.sin(), changed))

    with gradscope.watch() as scope:
        in_a_thread(keep)
        with torch.no_grad():
            kept[1].zero_()
        in_a_thread(lambda: torch._foreach_exp([leaf])[0].sum().backward())
    assert [finding for finding in scope.findings if finding.certainty == "certain"] == []


def test_what_a_foreach_operation_of_another_thread_saved_is_known_to_be_stale() -> None:
    """It hides what it saved, and this thread has saved tensors under the same number."""
    leaf = torch.ones(3, requires_grad=True)
    with gradscope.watch() as scope:
        product = leaf * torch.ones(3)
        result = in_a_thread(lambda: torch._foreach_exp([leaf])[0])
        with torch.no_grad():
            result.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        product.sum().backward()
    certain = [finding for finding in scope.findings if finding.certainty == "certain"]
    assert [(f.code, f.backward_call, f.missed) for f in certain] == [("GS201", 1, False)]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("stale_first", [True, False])
@with_low_numbers
def test_a_node_of_another_thread_is_not_given_what_one_of_this_thread_saved(
    stale_first: bool,
) -> None:
    """A sum saves nothing; the product with the same number does, and is stale."""
    leaf, factor = torch.ones(3, requires_grad=True), torch.ones(3)
    with gradscope.watch() as scope:
        in_a_thread(lambda: (leaf + 1 + 1 + 1).exp())  # another thread saves too
        number = next_sequence_nr()

        def add() -> torch.Tensor:
            while next_sequence_nr() < number:
                leaf + 1
            return leaf + 1

        total = in_a_thread(add)
        product = leaf * factor
        factor.add_(1)
        if not stale_first:
            total.backward(torch.ones(3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
        if stale_first:
            total.backward(torch.ones(3))
    certain = [finding for finding in scope.findings if finding.certainty == "certain"]
    call = 1 if stale_first else 2
    assert [(f.code, f.backward_call, f.missed) for f in certain] == [("GS201", call, False)]


def freed_in_a_thread_that_has_built_more() -> torch.Tensor:
    """A change of a view in place hides what it saved: only its number would tell when it was built."""
    leaf = torch.ones(3, requires_grad=True)

    def build() -> torch.Tensor:
        while next_sequence_nr() <= here:
            leaf + 1
        copy = leaf.clone()
        copy[:2] = torch.ones(2)
        return copy

    here = next_sequence_nr() + 10
    result = in_a_thread(build)
    result.backward(torch.ones(3))
    return result


@with_low_numbers
def test_check_tells_that_it_was_freed_in_whatever_thread_it_was_built() -> None:
    result = freed_in_a_thread_that_has_built_more()
    assert [finding.code for finding in gradscope.check(result)] == ["GS101"]


@pytest.mark.parametrize("hooks", [True, False], ids=["hooks", "no-hooks"])
@with_low_numbers
def test_a_watch_tells_that_it_was_freed_before_in_whatever_thread_it_was_built(
    hooks: bool,
) -> None:
    result = freed_in_a_thread_that_has_built_more()
    with (
        gradscope.watch(hooks=hooks) as scope,
        pytest.raises(RuntimeError, match="a second time"),
    ):
        result.backward(torch.ones(3))
    found = [(f.code, f.certainty, f.missed) for f in scope.findings]
    assert found == [("GS101", "certain", False)]


@with_low_numbers
def test_a_node_that_saved_nothing_is_not_given_what_one_of_this_thread_saved() -> None:
    """The other thread has saved nothing at all, so that no hook of the watch has run in it."""
    leaf, factor = torch.ones(3, requires_grad=True), torch.ones(3)
    with gradscope.watch() as scope:
        here = next_sequence_nr()

        def double() -> torch.Tensor:
            while next_sequence_nr() < here:
                leaf + 1
            return leaf * 2

        doubled = in_a_thread(double)
        product = leaf * factor
        factor.add_(1)
        doubled.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
    certain = [finding for finding in scope.findings if finding.certainty == "certain"]
    assert [(f.code, f.backward_call, f.missed) for f in certain] == [("GS201", 2, False)]
