"""Backward calls within each other, thousands deep: each costs what the one before it has cost.

Counted are the lines of gradscope that run, in all threads: beyond 60 calls within each other the engine goes on in others.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.autograd import Function

import gradscope
from gradscope.record.file import load

_OWN = str(Path(gradscope.__file__).parent)
_lines: dict[tuple[str, str], int] = {}


def _count(frame: FrameType, event: str, argument: object) -> Any:
    code = frame.f_code
    if not code.co_filename.startswith(_OWN):
        return None
    if event == "line":
        key = code.co_filename, code.co_name
        _lines[key] = _lines.get(key, 0) + 1
    return _count


class Nested(Function):
    """Makes a backward call in its backward, until there are enough within each other."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            ctx.left = x.detach().requires_grad_() - 1
        left: torch.Tensor = ctx.left
        return left.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        sys.settrace(_count)
        if ctx.left > 0:
            with torch.enable_grad():
                _forward(ctx.left).backward()
        return grad


def _forward(x: torch.Tensor) -> Any:
    return Nested.apply(x).sum()  # type: ignore[no-untyped-call]


def _run(depth: int) -> int:
    """Make so many calls within each other; return how many lines of ours ran meanwhile."""
    _lines.clear()
    before = sys.gettrace()
    try:
        _forward(torch.tensor(float(depth), requires_grad=True)).backward()
    finally:
        sys.settrace(before)
    return sum(_lines.values())


@pytest.mark.full(but=1)
@pytest.mark.parametrize("watching", ["hooks", "no hooks", "saved"])
def test_a_call_costs_the_same_however_many_are_open(watching: str, tmp_path: Path) -> None:
    """Four times as many calls within each other cost four times as much, not sixteen times."""
    options: dict[str, dict[str, Any]] = {
        "no hooks": {"hooks": False},
        "saved": {"save": tmp_path / "deep.gscope"},
    }
    with gradscope.watch(**options.get(watching, {})) as scope:
        _run(5)
        few, many = _run(80), _run(320)
        each = sorted(_lines.items(), key=lambda item: -item[1])[:8]
    assert not scope.findings
    assert scope.summary.backward_calls == 5 + 80 + 320
    assert many < 5 * few, each


def test_a_row_of_calls_within_each_other_has_all_their_numbers(tmp_path: Path) -> None:
    """The innermost has the highest number, and ends first."""
    with gradscope.watch(save=tmp_path / "deep.gscope") as scope:
        _run(30)
    for recording in (scope.recording(), load(tmp_path / "deep.gscope")):
        ranges = [(row.number, row.last_number, row.count) for row in recording.calls]
        assert ranges == [(1, 1, 1), (2, 30, 29)]
