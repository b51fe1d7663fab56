"""What a watch records of a backward call: which graph it met, what it ran, freed and left, and from where."""

from __future__ import annotations

import sys

import pytest
import torch
from in_threads import in_a_thread

import gradscope
from gradscope.api.scope import Scope
from gradscope.model import BackwardCall, NodeState, SavedState
from tests import known
from tests.needs import DETACHED_IS_TOLD, needs


def leaf() -> torch.Tensor:
    return torch.randn(256, requires_grad=True)


def calls(scope: Scope) -> tuple[BackwardCall, ...]:
    return scope.recording().calls


@pytest.fixture
def x() -> torch.Tensor:
    return leaf()


def test_a_call_tells_its_graph_its_line_and_its_root(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        loss = x.exp().sum()
        loss.backward()
        line = sys._getframe().f_lineno - 1
    (call,) = calls(scope)
    assert (call.number, call.kind, call.nodes, call.nodes_run) == (1, "backward", 3, 3)
    assert call.site is not None
    assert (call.site.file, call.site.line) == (__file__, line)
    assert [(root.name, root.label) for root in call.roots] == [("loss", "f32[]")]
    graph = scope.recording().graphs[known(call.graph)]
    assert [node.name for node in graph.nodes] == ["SumBackward0", "ExpBackward0", "AccumulateGrad"]


def test_a_call_tells_what_the_graph_held_and_what_became_of_it(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        loss = x.exp().sin().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    first, second = calls(scope)
    assert (first.retain_graph, second.retain_graph) == (True, False)
    assert first.saved_bytes == first.retained_bytes == second.freed_bytes == 1024
    assert first.freed_bytes == second.retained_bytes == second.live_bytes == 0
    assert (first.nodes_built, second.nodes_built) == (3, 0)


def test_a_call_for_some_inputs_runs_the_nodes_that_lead_to_them() -> None:
    x, other = leaf(), leaf()
    with gradscope.watch() as scope:
        loss = (x.exp() * other.sin()).sum()
        (gradient,) = torch.autograd.grad(loss, [x])
    (call,) = calls(scope)
    assert call.kind == "grad"
    assert call.inputs == ("x",)
    assert call.nodes == 6
    assert call.nodes_run == 3  # not the sine, and neither leaf
    assert gradient.shape == x.shape


def test_what_the_engine_raises_is_recorded_and_passed_on(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        loss = x.exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    first, second = calls(scope)
    assert first.exception is None
    assert known(second.exception).startswith("RuntimeError: Trying to backward")
    assert [finding.code for finding in scope.findings][-1:] == ["GS101"]


def test_a_call_inside_a_call_names_it(x: torch.Tensor) -> None:

    def inner(gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x.detach().requires_grad_().exp().sum().backward()
        return gradient

    with gradscope.watch() as scope:
        loss = x.sin().sum()
        loss.register_hook(inner)
        loss.backward()
    by_number = {call.number: call for call in calls(scope)}
    assert by_number[1].parent is None
    assert by_number[2].parent == 1


def test_calls_of_threads_are_told_apart() -> None:
    def train() -> None:
        leaf().exp().sum().backward()

    with gradscope.watch() as scope:
        in_a_thread(train, name="worker")
        train()
    assert [call.thread for call in calls(scope)] == ["worker", "MainThread"]


def test_alike_calls_of_a_loop_are_one_row(x: torch.Tensor) -> None:
    with gradscope.watch() as scope:
        for _ in range(20):
            x.exp().sum().backward()
    rows = calls(scope)
    assert sum(row.count for row in rows) == 20
    assert len(rows) <= 2
    assert rows[-1].last_number == 20
    assert scope.summary.backward_calls == 20


def test_a_look_says_which_nodes_and_saved_tensors_are_freed(x: torch.Tensor) -> None:
    with gradscope.watch():
        shared = x.exp()
        first, second = shared.sin().sum(), shared.cos().sum()
        first.backward()
        graph = gradscope.snapshot(first, second)
    state = {node.name: node.state for node in graph.nodes}
    assert state["SinBackward0"] is state["ExpBackward0"] is NodeState.FREED
    assert state["CosBackward0"] is NodeState.LIVE
    saved = {node.name: [s.state for s in node.saved] for node in graph.nodes}
    assert saved["CosBackward0"] == [SavedState.SAVED]
    assert saved["ExpBackward0"] == [SavedState.FREED]


def test_a_look_finds_what_was_changed_in_place(x: torch.Tensor) -> None:
    with gradscope.watch():
        y = x.exp()
        y.add_(1)
        graph = gradscope.snapshot(y)
    saved = {node.name: [s.state for s in node.saved] for node in graph.nodes}
    assert saved["ExpBackward0"] == [SavedState.STALE]


def test_a_look_gives_storages_that_are_one_the_same_number(x: torch.Tensor) -> None:
    y = x.exp()
    graph = gradscope.snapshot(y.sin() + y.cos())
    (number,) = {s.storage for node in graph.nodes for s in node.saved}
    assert number is not None
    assert sum(s.nbytes for node in graph.nodes for s in node.saved) >= 1024


def test_a_look_changes_nothing(x: torch.Tensor) -> None:
    loss = x.exp().sum()
    before = gradscope.snapshot(loss)
    assert gradscope.snapshot(loss) == before
    loss.backward()
    assert x.grad is not None


def test_a_graph_of_ragged_nested_tensors_is_recorded() -> None:
    parts = [leaf(), leaf()[:3]]
    with gradscope.watch() as scope:
        nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        (nested * nested).values().sum().backward()
    (call,) = calls(scope)
    assert call.graph is not None
    assert not scope.summary.notes


@pytest.mark.parametrize("hooks", [True, pytest.param(False, marks=needs(DETACHED_IS_TOLD))])
def test_a_saved_input_that_was_detached_in_place_is_called(hooks: bool) -> None:
    x, weight = leaf(), leaf()
    with gradscope.watch(hooks=hooks) as scope:
        healthy, detached = x.exp(), x.exp()
        loss = (detached * weight).sum() + (healthy * weight).sum() + x.exp().sum()
        healthy.sum().backward(retain_graph=True)
        assert not scope.findings
        detached.detach_()
        with pytest.raises(RuntimeError, match="detached in-place"):
            loss.backward()
    assert [(f.code, f.missed) for f in scope.findings] == [("GS201", False)]


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_nodes_of_two_threads_with_one_number_are_kept_apart(before: bool, hooks: bool) -> None:
    """Each thread numbers its nodes from 0: what another thread's node saved is not this one's."""
    x, built, errors = leaf(), [], []

    def share() -> None:
        built.append((x**2).sum())

    def use() -> None:
        try:
            (built[0] * (x**2).sum()).backward()
        except RuntimeError as error:
            errors.append(str(error))

    if before:
        in_a_thread(share)
    with gradscope.watch(hooks=hooks) as scope:
        if not before:
            in_a_thread(share)
        in_a_thread(use)
        assert not scope.findings
        in_a_thread(use)
    assert "a second time" in errors[0]
    assert [(f.code, f.missed) for f in scope.findings] == [("GS101", False)]


def test_nodes_that_no_call_met_are_told_from_those_that_live() -> None:
    weight = torch.ones(2, requires_grad=True)
    with gradscope.watch() as scope:
        for _ in range(3):
            weight.exp().sum()
        loss = weight.exp().sum()
        loss.backward()
        summary = scope.summary
        assert (summary.nodes, summary.nodes_alive, summary.nodes_unmet) == (8, 2, 6)
        assert "8 built, 0 destroyed, 2 alive, 6 reached by no backward call" in str(summary)
        del loss
        assert (scope.summary.nodes_destroyed, scope.summary.nodes_alive) == (2, 0)


@pytest.mark.parametrize("hooks", [True, False])
def test_what_was_built_before_the_watch_is_told_apart(*, hooks: bool) -> None:
    loss = torch.ones(2, requires_grad=True).exp().sum()
    with gradscope.watch(hooks=hooks) as scope:
        loss.backward()
        own = torch.ones(2, requires_grad=True).exp().sum()
        own.backward()
        summary = scope.summary
    assert (summary.nodes, summary.nodes_before, summary.nodes_alive) == (2, 2, 4)
    assert "2 nodes that a call met; what these saved is not counted" in str(scope)
