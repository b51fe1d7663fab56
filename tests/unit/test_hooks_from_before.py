"""Saved-tensor hooks that a program put in before a watch began run as often as without the watch."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import gradscope


class Counting(saved_tensors_hooks):
    """Counts what is unpacked."""

    def __init__(self) -> None:
        self.unpacked = 0
        super().__init__(lambda tensor: tensor, self.unpack)

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.unpacked += 1
        return tensor


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("built", ["before", "while"])
def test_hooks_run_once_for_each_saved_tensor(built: str, hooks: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    theirs = Counting()
    with theirs, ExitStack() as watching:
        if built == "while":
            watching.enter_context(gradscope.watch(hooks=hooks))
        loss = (x * x).sum()
        if built == "before":
            watching.enter_context(gradscope.watch(hooks=hooks))
        loss.backward()
    assert theirs.unpacked == 2


@pytest.mark.parametrize("hooks", [True, False])
def test_a_checkpoint_computes_again_once(hooks: bool) -> None:
    x, computed = torch.ones(3, requires_grad=True), []

    def forward(given: torch.Tensor) -> torch.Tensor:
        computed.append(given)
        return (given.exp() * given).sin()

    loss = checkpoint(forward, x * 2, use_reentrant=False).sum()
    with gradscope.watch(hooks=hooks):
        loss.backward()
    assert len(computed) == 2


def test_a_graph_is_looked_at_without_them() -> None:
    x = torch.ones(3, requires_grad=True)
    theirs = Counting()
    with theirs:
        loss = (x * x).sum()
    gradscope.check(loss)
    gradscope.snapshot(loss)
    assert theirs.unpacked == 0
