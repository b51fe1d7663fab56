"""The optimizers that variables lead to are found, and no code of the program's runs for it; what
their steps change is told.
"""

from __future__ import annotations

import sys

import torch

from gradscope.collect.mutations import Mutations
from gradscope.detect.foresight.training import Optimizers
from gradscope.program.sites import Place


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
