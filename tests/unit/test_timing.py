"""``gradscope.time_graph``: what it runs, and that it leaves no gradient behind."""

from __future__ import annotations

import pytest
import torch

import gradscope
from gradscope.api.time_graph import Timing


def test_all_three_are_timed_and_no_grad_is_touched() -> None:
    weight, seen = torch.rand(4, 4, requires_grad=True), []

    def forward() -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return (weight @ weight).sum()

    timing = gradscope.time_graph(forward, duration=0.0)
    assert timing.rounds == 5
    assert min(timing.forward, timing.forward_without_graph, timing.backward) > 0
    assert weight.grad is None
    assert seen.count(True) == 1 + timing.rounds
    assert seen.count(False) == 2 * timing.rounds


def test_share() -> None:
    timing = Timing(forward=0.003, forward_without_graph=0.002, backward=0.001, rounds=5)
    assert timing.share == pytest.approx(0.25)
    assert (
        str(timing).splitlines()[-1]
        == "building the graph           1.000 ms  25.0% of forward + backward"
    )
    assert Timing(0.002, 0.003, 0.001, 5).share == 0.0


def test_wrong_use_is_told() -> None:
    with pytest.raises(gradscope.GradscopeError, match="no scalar with a graph"):
        gradscope.time_graph(lambda: torch.rand(3))
    with pytest.raises(gradscope.GradscopeError, match="no scalar with a graph"):
        gradscope.time_graph(lambda: torch.rand(3, requires_grad=True) * 2)
    with gradscope.watch(), pytest.raises(gradscope.GradscopeError, match="outside"):
        gradscope.time_graph(lambda: torch.rand(3, requires_grad=True).sum())
