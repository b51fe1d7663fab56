"""The optimizers that variables lead to are found, which of them use which gradient is read ahead,
and no code of the program's runs for it; what their steps change is told.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradscope
from gradscope.collect.mutations import Mutations
from gradscope.detect.foresight.training import Optimizers
from gradscope.program.ahead.questions import events_around, start_after
from gradscope.program.ahead.ways import Way, What
from gradscope.program.sites import Place, user_frames


class Key:
    """Says what it is only when it is asked."""

    def __repr__(self) -> str:
        raise AssertionError("asked")


def test_keys_of_the_program_s_own_classes_are_not_asked() -> None:
    weight = torch.ones(2, requires_grad=True)
    held = {Key(): torch.optim.SGD([weight], 0.1), "named": torch.optim.SGD([weight], 0.1)}
    found = Optimizers([sys._getframe()]).all
    assert sorted(each.name for each in found) == ["held['named']", "held[<Key>]"]
    assert len(held) == 2


def test_a_step_that_was_not_looked_at_is_not_taken_for_another() -> None:
    """Whether a graph may live is asked before a step and after it; the answers may differ."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    mutations, place = Mutations(), Place(sys._getframe().f_code, 0)
    mutations.before_step(optimizer, looks=True)
    before = parameter._version
    with torch.no_grad():
        parameter.add_(1)
    mutations.before_step(optimizer, looks=False)
    mutations.after_step(optimizer, place)
    assert mutations._step_after(parameter, before) is None
    mutations.before_step(optimizer, looks=True)
    before = parameter._version
    with torch.no_grad():
        parameter.add_(1)
    mutations.after_step(optimizer, place)
    assert mutations._step_after(parameter, before) is place.site


def test_parameters_that_have_no_gradient_at_any_step_are_counted() -> None:
    used, unused, late, frozen = (torch.nn.Parameter(torch.ones(2)) for _ in range(4))
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([used, unused, late, frozen], lr=0.1)
    with gradscope.watch() as scope:
        for step in range(3):
            optimizer.zero_grad()
            (used.exp() * (late if step == 2 else 1.0)).sum().backward()
            optimizer.step()
            assert scope.summary.without_gradient == (1 if step == 2 else 2)
        text = " ".join(str(scope).split())
    assert text.endswith("; 1 parameter that an optimizer stepped never had a gradient")


def test_gradients_that_a_closure_makes_are_met() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=2)

    def closure() -> float:
        optimizer.zero_grad()
        loss = weight.exp().sum()
        loss.backward()
        return float(loss.detach())

    with gradscope.watch() as scope:
        optimizer.step(closure)
    assert scope.summary.without_gradient == 0


class Own(torch.optim.SGD):
    """An optimizer of the program's."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Trainer:
    """Steps out of the sight of the loop."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def _in_turn(first: Any, second: Any, loss: Callable[[], Any], look: Callable[[], None]) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(2):
        first.zero_grad()
        look()
        loss().backward()
        scaler.step(first)
        scaler.update()
        second.zero_grad()
        loss().backward()
        Trainer(second).update()


def _at_the_end(first: Any, second: Any, loss: Callable[[], Any], look: Callable[[], None]) -> None:
    for _ in range(2):
        look()
        loss().backward()
        loss().backward()
        for each in (first, second):
            each.step()
        for each in (first, second):
            for group in each.param_groups:
                for p in group["params"]:
                    p.grad = None


def _reset_between(
    first: Any, second: Any, loss: Callable[[], Any], look: Callable[[], None]
) -> None:
    for _ in range(2):
        first.zero_grad()
        look()
        loss().backward()
        second.zero_grad()
        loss().backward()
        first.step()
        second.step()


def _in_a_closure(
    first: Any, second: Any, loss: Callable[[], Any], look: Callable[[], None]
) -> None:
    def closure() -> Any:
        first.zero_grad()
        look()
        value = loss()
        value.backward()
        return value

    for _ in range(2):
        first.step(closure)
        second.zero_grad()
        loss().backward()
        second.step()


@pytest.mark.parametrize(
    ("program", "used"),
    [
        (_in_turn, [["first"], ["second"]]),
        (_at_the_end, [["first", "second"], ["first", "second"]]),
        (_reset_between, [["first"], ["second"]]),
        (_in_a_closure, [["first"], ["second"]]),
    ],
)
def test_which_optimizer_uses_a_gradient_is_read_ahead(program: Any, used: list[list[str]]) -> None:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    found: list[list[str]] = []

    def loss() -> torch.Tensor:
        return weights[0].sum() + weights[1].sum()

    def look() -> None:
        if found:
            return
        frame = sys._getframe(1)
        before, after = events_around(start_after(frame), Way((), 1, 1_000))
        assert before[0].what is What.BACKWARD is after[0].what
        optimizers = Optimizers(user_frames(frame))
        uses = ((), (*before[1:], *after)), (before, after[1:])
        found.extend([each.name for each in optimizers.stepping(*two)] for two in uses)

    program(torch.optim.SGD(weights[:1], 0.1), Own(weights[1:], 0.1), loss, look)
    assert found == used
