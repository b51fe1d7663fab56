"""What a watch counts of saved tensors: each storage once, from its saving to the end of its node."""

from __future__ import annotations

import gc

import pytest
import torch

import gradscope

BYTES = 4 * 256


def leaf() -> torch.Tensor:
    return torch.randn(256, requires_grad=True)


@pytest.fixture
def x() -> torch.Tensor:
    return leaf()


def test_what_a_node_saves_is_counted_when_it_is_built(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        y = x.exp()
        z = y.sin()
        seen = scope.summary
    assert (seen.nodes, seen.saved_tensors) == (2, 2)
    assert seen.live_bytes == seen.saved_bytes == BYTES  # both saved y
    assert (seen.freed_tensors, seen.dropped_tensors) == (0, 0)
    assert z.grad_fn is not None


def test_a_storage_saved_by_several_nodes_counts_once(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        y = x.exp()
        kept = [y.sin(), y.cos(), y.view(16, 16).tanh()]
        seen = scope.summary
    assert seen.live_bytes == 2 * BYTES  # y, and the result of tanh
    assert len(kept) == 3


def test_parameters_are_no_activations() -> None:
    linear = torch.nn.Linear(256, 1, bias=False)
    batch = torch.randn(256)
    with gradscope.watch() as scope:
        out = linear(batch * 2)
        seen = scope.summary
    assert seen.live_bytes == BYTES  # the batch, not the weight
    del out


def test_a_backward_call_frees_what_it_runs_through(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        loss = x.exp().sin().sum()
        loss.backward()
        seen = scope.summary
    assert (seen.freed_tensors, seen.freed_bytes) == (2, BYTES)
    assert (seen.live_bytes, seen.peak_saved_bytes) == (0, BYTES)


def test_what_a_variable_still_holds_is_freed_but_not_returned(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        y = x.exp()
        y.sum().backward()
        held = scope.summary
        del y
    assert (held.freed_bytes, held.returned_bytes) == (BYTES, 0)


def test_memory_of_a_view_returns_if_nothing_holds_what_it_is_a_view_of(x: torch.Tensor) -> None:
    for kept in (False, True):
        with gradscope.watch() as scope:
            base = x.exp()
            loss = base.view(16, 16).sin().sum() if kept else (x * 2).view(16, 16).sin().sum()
            loss.backward()
        seen = scope.summary
        assert (seen.freed_bytes, seen.returned_bytes) == (BYTES, 0 if kept else BYTES)
    assert base.numel() == 256


def alone(loss: torch.Tensor) -> set[bool | None]:
    """Return for what a graph saved whether it holds that alone."""
    return {saved.alone for node in gradscope.snapshot(loss).nodes for saved in node.saved}


def test_a_graph_is_alone_with_what_no_variable_holds(x: torch.Tensor) -> None:
    rows = [row.cos() for row in (x + 1).view(16, 16)]
    own = (x + 1).cos(), (x + 1).view(16, 16).cos(), (x + 1).exp(), torch.stack(rows)
    assert [alone(loss) for loss in own] == [{True}, {True}, {False}, {True}]  # exp saves itself
    base = x + 1
    others = base.cos(), base.view(16, 16).cos(), base[3:].cos()
    assert [alone(loss) for loss in others] == [{False}] * 3
    view = base.view(16, 16)
    del base
    assert [alone(loss) for loss in others] == [{False}] * 3
    del view
    assert [alone(loss) for loss in others[1:]] == [{False}] * 2  # each holds what all saved
    del others
    assert alone(own[0]) == {True}


def test_a_storage_that_a_variable_holds_is_not_the_graphs_alone() -> None:
    loss = (leaf() + 1).cos()
    storage = loss.grad_fn._saved_self.untyped_storage()  # type: ignore[union-attr]
    assert alone(loss) == {False}
    del storage
    assert alone(loss) == {True}


def test_a_retained_graph_stays_until_it_is_dropped(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        loss = x.exp().sum()
        loss.backward(retain_graph=True)
        retained = scope.summary
        del loss
        gc.collect()
        dropped = scope.summary
    assert (retained.freed_tensors, retained.live_bytes) == (0, BYTES)
    assert (dropped.dropped_tensors, dropped.dropped_bytes, dropped.live_bytes) == (1, BYTES, 0)


def test_a_graph_that_no_backward_call_meets_is_dropped_with_its_output(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        for _ in range(3):
            x.exp().sum()
        seen = scope.summary
    assert (seen.saved_tensors, seen.dropped_tensors, seen.freed_tensors) == (3, 3, 0)
    assert (seen.live_bytes, seen.nodes) == (0, 6)


def test_partial_backward_frees_the_part_that_ran(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        shared = x.exp()
        first, second = shared.sin().sum(), shared.cos().sum()
        first.backward()
        seen = scope.summary
    assert seen.freed_tensors == 2  # of sin and of exp
    assert seen.live_bytes == BYTES  # cos has saved the result of exp too
    assert second.grad_fn is not None


def test_every_saved_tensor_ends_freed_or_dropped_or_lives(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        kept = x.exp().sin()
        x.cos().sum().backward()
        x.tan()
        seen = scope.summary
    assert kept.grad_fn is not None
    assert seen.saved_tensors == seen.freed_tensors + seen.dropped_tensors + 2
