"""What an in-place operation on a view saves is found, though torch hides the node that saved it."""

from __future__ import annotations

import pytest
import torch

import gradscope


@pytest.mark.parametrize("before", ["nothing", "the base was changed", "the view was changed"])
def test_a_view_multiplied_by_itself_in_place_is_called(before: str) -> None:
    """torch saves the view as it is and a clone of it, and wraps the node into CopySlices."""
    base = torch.randn(3, 3, requires_grad=True) * 1
    if before == "the base was changed":
        base.add_(1)
    view = base[1:]
    if before == "the view was changed":
        view.add_(1)
    with gradscope.watch() as scope:
        view.mul_(view)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            view.sum().backward()
    certain = [finding for finding in scope.findings if finding.certainty == "certain"]
    assert [(finding.code, finding.missed) for finding in certain] == [("GS201", False)]
