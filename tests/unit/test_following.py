"""``gradscope.follow``: what it says of nodes is what becomes of them, and it keeps nothing alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import gradscope
from gradscope.model import NodeState, SavedState


def states(life: gradscope.api.graphs.Life) -> dict[str, NodeState]:
    return {node.name: node.state for node in life.now().nodes}


@pytest.fixture
def a() -> torch.Tensor:
    return torch.rand(3, requires_grad=True)


def test_freed_and_then_destroyed(a: torch.Tensor) -> None:
    loss = a.exp().sum()
    life = gradscope.follow(loss)
    assert states(life) == {
        "SumBackward0": NodeState.BUFFERLESS,
        "ExpBackward0": NodeState.LIVE,
        "AccumulateGrad": NodeState.BUFFERLESS,
    }
    loss.backward()
    assert states(life)["ExpBackward0"] is NodeState.FREED
    assert life.now().nodes[1].saved[0].state is SavedState.FREED
    assert life.destroyed == 0
    del loss
    assert set(states(life).values()) == {NodeState.DESTROYED}
    assert life.destroyed == 3
    assert life.now().nodes[1].saved[0].state is SavedState.FREED


def test_retained_and_dropped(a: torch.Tensor) -> None:
    with gradscope.watch():
        loss = a.exp().sum()
        life = gradscope.follow(loss)
        loss.backward(retain_graph=True)
        assert states(life)["ExpBackward0"] is NodeState.RETAINED
        del loss
        assert life.now().nodes[1].saved[0].state is SavedState.DROPPED


def test_a_part_that_another_tensor_holds_lives_on(a: torch.Tensor) -> None:
    y = a.exp()
    loss = y.sin().sum()
    life = gradscope.follow(loss)
    y.sum().backward()
    del loss
    assert states(life) == {
        "SumBackward0": NodeState.DESTROYED,
        "SinBackward0": NodeState.DESTROYED,
        "ExpBackward0": NodeState.FREED,
        "AccumulateGrad": NodeState.BUFFERLESS,
    }


def test_it_keeps_nothing_alive(a: torch.Tensor) -> None:
    y = a.exp()
    loss = y.sum()
    life = gradscope.follow(loss)
    died = weakref.ref(loss), weakref.ref(y)
    print(life)
    gc.disable()
    try:
        del loss, y
        assert [ref() for ref in died] == [None, None]
        assert life.destroyed == 3
    finally:
        gc.enable()


def test_two_follow_one_graph(a: torch.Tensor) -> None:
    y = a.exp()
    first = gradscope.follow(y)
    loss = y.sum()
    second = gradscope.follow(loss)
    del loss
    assert first.destroyed == 0
    assert second.destroyed == 1
    assert states(first)["ExpBackward0"] is states(second)["ExpBackward0"] is NodeState.LIVE


def test_the_graph_can_be_drawn_after_its_end(a: torch.Tensor) -> None:
    loss = a.exp().sum()
    life = gradscope.follow(loss)
    del loss
    assert b"destroyed" in gradscope.draw(life.now()).content


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(gradscope.GradscopeError, match="argument 1 is a int"):
        gradscope.follow(1)  # type: ignore[arg-type]
    with pytest.raises(gradscope.GradscopeError, match="does not require grad"):
        gradscope.follow(torch.rand(2))
    deep = torch.rand(2, requires_grad=True) * 1
    for _ in range(20_000):
        deep = deep + 1
    with pytest.raises(gradscope.GradscopeError, match="too large to follow"):
        gradscope.follow(deep)
