"""The optimizers that variables lead to are found, and no code of the program's runs for it."""

from __future__ import annotations

import sys

import torch

from gradscope.detect.foresight.optimizers import Optimizers


class Key:
    """Says what it is only when it is asked."""

    def __repr__(self) -> str:
        raise AssertionError("asked")


def test_keys_of_the_program_s_own_classes_are_not_asked() -> None:
    weight = torch.ones(2, requires_grad=True)
    held = {Key(): torch.optim.SGD([weight], 0.1), "named": torch.optim.SGD([weight], 0.1)}
    found = Optimizers([sys._getframe()]).all
    assert sorted(each.name for each in found) == ["held['named']", "held[…]"]
    assert len(held) == 2
