"""A checkpoint that computes again from an input that has changed since is announced, with hooks and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_freed_unseen import certain
from torch.utils.checkpoint import checkpoint

import gradscope


@pytest.mark.parametrize("hooks", [True, False])
def test_a_changed_input_of_a_checkpoint_is_called(hooks: bool) -> None:
    leaf = torch.ones(3, requires_grad=True)
    given = leaf * 1
    with gradscope.watch(hooks=hooks) as scope:
        kept = checkpoint(torch.exp, given, use_reentrant=False)
        given.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            kept.sum().backward()
    assert certain(scope) == [("GS201", False)]


def test_a_stale_node_that_does_not_run_explains_no_error() -> None:
    """Only the branch to the first leaf runs, and what it raises is the program's own."""
    first, second = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    factor = torch.ones(3)

    class Unrolled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            text = "one of the variables needed for gradient computation has been modified by an inplace operation"
            raise RuntimeError(text)

    with gradscope.watch() as scope:
        wanted, other = Unrolled.apply(first), second * factor  # type: ignore[no-untyped-call]
        factor.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad((wanted + other).sum(), first)
    assert [finding.certainty for finding in scope.findings if not finding.missed] == []
