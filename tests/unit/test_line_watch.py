"""The watch by lines: which statement it blames, when it is on, and whom it yields to."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch._dynamo.utils import ExactWeakKeyDictionary

import gradscope
from gradscope.code.statements import changed_by
from gradscope.detect import line_watch
from gradscope.detect.line_watch import Versions
from gradscope.model import Site

BLAMED = [
    ("x += y", "x += y", "x"),
    ("x[0] = y", "x[0] = y", "x"),
    ("y = x.relu_()", "x.relu_()", "x"),
    ("self.mean.mul_(0.9).add_(y)", "self.mean.mul_(0.9).add_(y)", "self.mean"),
    ("torch.relu_(x)", "torch.relu_(x)", "x"),
    ("y = layer(x)", "y = layer(x)", ""),
    ("x += y; z += y", "x += y", ""),
    ("torch.add(x, 1, out=x)", "torch.add(x, 1, out=x)", "x"),
]


@pytest.fixture
def w() -> torch.Tensor:
    return torch.randn(3, requires_grad=True)


@pytest.mark.parametrize(("line", "blamed", "target"), BLAMED)
def test_the_statement_that_changes_a_tensor_is_found_on_its_line(
    line: str, blamed: str, target: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"if True:\n    {line}\n")
    found = changed_by(Site(str(script), 2, 5, 2, 6, "<module>"))
    assert found.site.line == 2
    assert line[found.site.column - 5 : found.site.end_column - 5] == blamed
    assert found.target == target


def trace(frame: FrameType, event: str, argument: object) -> Any:
    return None


def is_traced() -> bool:
    return sys._getframe(1).f_trace is not None


def test_it_is_on_from_the_first_saved_tensor_to_the_call_that_frees_it(w: torch.Tensor) -> None:
    with gradscope.watch():
        before = is_traced()
        loss = w.exp().sum()
        between = is_traced(), sys.gettrace()
        loss.backward()
        after = is_traced()
    assert (before, between, after) == (False, (True, None), False)


def test_it_stays_on_while_a_graph_is_kept_and_goes_with_the_watch(w: torch.Tensor) -> None:
    with gradscope.watch():
        loss = w.exp().sum()
        loss.backward(retain_graph=True)
        kept = is_traced()
    assert (kept, is_traced(), sys.gettrace()) == (True, False, None)


def test_it_is_off_where_no_hooks_are_put_in(w: torch.Tensor) -> None:
    with gradscope.watch(hooks=False):
        loss = w.exp().sum()
        assert not is_traced()
    del loss


def test_the_end_of_an_object_of_the_compiler_s_does_not_end_it(w: torch.Tensor) -> None:
    table: Any = ExactWeakKeyDictionary()
    keys = [lambda: None]  # anything that can be referred to weakly
    table[keys[0]] = 1
    with gradscope.watch():
        loss = w.exp().sum()
        keys.clear()  # the compiler's own code hears of it, as when Python's collector comes
        assert is_traced()
    del loss


def test_the_collector_does_not_run_in_its_looks(w: torch.Tensor) -> None:
    came_in: list[bool] = []

    def comes(phase: str, info: object) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not line_watch.LineWatch._look.__code__:
            frame = frame.f_back
        came_in.append(frame is not None)

    thresholds = gc.get_threshold()
    gc.callbacks.append(comes)
    gc.set_threshold(1)
    try:
        with gradscope.watch():
            loss = w.exp().sum()
            loss = loss + w.exp().sum()
            loss.backward()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(comes)
    assert came_in
    assert not any(came_in)


def test_somebody_elses_trace_stays(w: torch.Tensor) -> None:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with gradscope.watch():
            loss = w.exp().sum()
            found = sys.gettrace()
            loss.backward()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert found is after is trace


def test_a_trace_that_the_program_sets_later_wins(w: torch.Tensor) -> None:
    with gradscope.watch():
        loss = w.exp().sum()
        sys.settrace(trace)
        found = sys.gettrace()
        loss.backward()
        after = sys.gettrace()
        sys.settrace(None)
    assert found is after is trace


def test_it_ends_when_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_watch, "_MOST_EVENTS", 50)
    w = torch.randn(3, requires_grad=True)
    with gradscope.watch() as scope:
        y = w.exp()
        total = 0
        for i in range(100):
            total += i
        assert not is_traced()
        y += 1
        with pytest.raises(RuntimeError, match="inplace"):
            y.sum().backward()
    assert [f.code for f in scope.findings] == ["GS201"]


def test_its_own_failure_is_noted_and_not_the_programs(
    monkeypatch: pytest.MonkeyPatch, w: torch.Tensor
) -> None:
    with gradscope.watch() as scope:
        y = w.exp()
        monkeypatch.setattr(Versions, "changed", len)  # which wants an argument
        z = y + 1
        traced = is_traced()
        z.sum().backward()
        (note,) = scope.recording().summary.notes
    assert not traced
    assert "the line watch failed" in note


def test_it_ends_once_graphs_are_known(w: torch.Tensor) -> None:
    seen = []
    with gradscope.watch():
        for _ in map(int, range(60)):  # of which it is not known how many are left
            loss = w.exp().sum()
            seen.append(is_traced())
            loss.backward()
    assert seen[0]
    assert not seen[-1]
