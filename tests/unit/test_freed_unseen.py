"""Nodes that show nothing of what they saved are known to be freed, and only then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from test_subclasses import Dispatching
from torch import Tensor

import gradscope
from gradscope.collect import hook_suspension

SECOND_TIME = "backward through the graph a second time"


def certain(scope: gradscope.Watch) -> list[tuple[str, bool]]:
    return [(f.code, f.missed) for f in scope.findings if f.certainty == "certain"]


def written_into(leaf: Tensor) -> Tensor:
    """A table with a row of the leaf: the assignment's own node saves nothing that a hook sees."""
    table = torch.zeros(3, 3)
    table[0] = leaf[1]
    return table


def refuse(gradient: Tensor) -> None:
    raise ValueError("in a hook of the program's")


@pytest.mark.parametrize("hooks", [True, False])
def test_a_call_that_failed_has_freed_what_it_ran_before(hooks: bool) -> None:
    leaf = torch.ones(3, 3, requires_grad=True)
    with gradscope.watch(hooks=hooks) as scope:
        refused = leaf.cos()
        refused.register_hook(refuse)
        table = written_into(leaf)
        with pytest.raises(ValueError, match="in a hook"):
            (refused.sum() + table.sum()).backward()  # the youngest node runs first
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            table.sum().backward()
    assert certain(scope) == [("GS101", False)]


@pytest.mark.parametrize("hooks", [True, False])
def test_a_call_that_failed_has_not_freed_what_it_did_not_run(hooks: bool) -> None:
    leaf = torch.ones(3, 3, requires_grad=True)
    with gradscope.watch(hooks=hooks) as scope:
        table = written_into(leaf)
        refused = leaf.cos()
        refused.register_hook(refuse)
        with pytest.raises(ValueError, match="in a hook"):
            (refused.sum() + table.exp().sum()).backward()
        table.exp().sum().backward()
    assert certain(scope) == []


def test_a_call_that_the_watch_refused_has_freed_nothing() -> None:
    leaf = torch.ones(3, 3, requires_grad=True)
    with gradscope.watch(raise_on="error") as scope:
        loss = leaf.exp().sum()
        table = written_into(leaf)
        loss.backward()
        with pytest.raises(gradscope.FreedGraphError):
            (loss + table.sum()).backward()
        table.sum().backward()
    assert certain(scope) == [("GS101", False)]


@pytest.mark.parametrize("hooks", [True, False])
def test_a_view_modified_and_freed_before_the_watch(hooks: bool) -> None:
    leaf = torch.ones(3, 3, requires_grad=True)
    freed, whole = written_into(leaf), written_into(leaf)
    freed.sum().backward()
    with gradscope.watch(hooks=hooks) as scope:
        whole.sum().backward()
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            freed.sum().backward()
    assert certain(scope) == [("GS101", False)]


@pytest.mark.parametrize("saves", [True, False])
def test_a_foreach_operation_without_hooks(saves: bool) -> None:
    leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
    with gradscope.watch(hooks=False) as scope:
        first, _ = torch._foreach_mul(leaves, leaves) if saves else torch._foreach_neg(leaves)
        first.sum().backward()
        if saves:
            with pytest.raises(RuntimeError, match=SECOND_TIME):
                first.sum().backward()
        else:
            first.sum().backward()
    assert certain(scope) == [("GS101", False)] * saves


def test_a_foreach_operation_while_the_hooks_are_lifted() -> None:
    leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
    with (
        mock.patch.multiple(hook_suspension, _ALIKE=1, _ALIKE_WITHOUT_STEPS=1),
        gradscope.watch() as scope,
    ):
        for _ in range(4):
            leaves[0].exp().sum().backward()
        first, _ = torch._foreach_mul(leaves, leaves)
        first.sum().backward()
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            first.sum().backward()
    assert certain(scope) == [("GS101", False)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_number_saved_unseen_is_known_to_be_stale(dtype: torch.dtype) -> None:
    factor = torch.ones((), dtype=dtype, requires_grad=True)
    with gradscope.watch() as scope:
        scale = factor.exp() + 1
        with Dispatching():  # type: ignore[no-untyped-call]  # our hooks stand aside under a mode
            loss = factor.tanh() * scale
        scale.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert certain(scope) == [("GS201", False)]


def test_a_foreach_operation_of_a_thread_whose_numbers_another_thread_has_too() -> None:
    leaves = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    # New threads count their nodes from zero.
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, gradscope.watch() as scope:
        kept = one.submit(lambda: leaves[0].exp().exp().exp()).result()
        first, _ = other.submit(lambda: torch._foreach_mul(leaves, leaves)).result()
        weight = torch.ones(2)
        other.submit(first.backward, weight).result()
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            first.backward(weight)
        kept.sum().backward()
    assert certain(scope) == [("GS101", False)]
