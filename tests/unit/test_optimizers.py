"""The optimizers that variables lead to are found, which of them use which gradient is read ahead,
and no code of the program's runs for it; what their steps change is told.
"""

from __future__ import annotations

import sys

import torch

import gradscope
from gradscope.collect.mutations import Mutations
from gradscope.program.sites import Place


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
            training = scope.summary.training
            assert (training.steps, training.parameters) == (step + 1, 3)
            assert training.reached == (2 if step == 2 else 1)
    (found,) = scope.findings
    assert (found.code, found.parameters) == ("GS502", ("unused",))


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
    training = scope.summary.training
    assert (training.reached, training.parameters) == (1, 1)
