"""The walk over nodes: depth first, each once, within its budget, and where its caller wants it to go."""

from __future__ import annotations

import torch
from torch.autograd.graph import Node

from gradscope.collect.walk import (
    Walker,
    dependencies_last,
    reachable,
    root_node,
    targets_of,
    will_run,
)
from tests import known


def diamond() -> torch.Tensor:
    """``sum(add(exp(x), sin(x)))``."""
    x = torch.ones(2, requires_grad=True)
    return (x.exp() + x.sin()).sum()


def node_of(tensor: torch.Tensor) -> Node:
    return known(tensor.grad_fn)


def names(nodes: dict[Node, int]) -> list[str]:
    return [node.name().split("::")[-1] for node in nodes]


DIAMOND = ["SumBackward0", "AddBackward0", "ExpBackward0", "AccumulateGrad", "SinBackward0"]


def test_nodes_come_depth_first_and_once() -> None:
    found = Walker(100).walk([node_of(diamond())])
    assert names(found) == DIAMOND
    assert list(found.values()) == [0, 1, 2, 3, 4]


def test_several_roots_share_what_they_share() -> None:
    x = torch.ones(2, requires_grad=True)
    shared = x.exp()
    one, other = shared.sin(), shared.cos()
    found = Walker(100).walk([node_of(one), None, node_of(other), node_of(one)])
    assert names(found) == ["SinBackward0", "ExpBackward0", "AccumulateGrad", "CosBackward0"]


def test_a_node_that_is_not_entered_is_found_and_not_passed() -> None:
    found = Walker(100).walk([node_of(diamond())], lambda node: "Exp" not in node.name())
    assert names(found) == [*DIAMOND[:3], "SinBackward0", "AccumulateGrad"]


def test_the_budget_is_of_all_walks_together() -> None:
    walker = Walker(7)
    assert len(walker.walk([node_of(diamond())])) == 5
    assert walker.left == 0
    assert len(walker.walk([node_of(diamond())])) == 2
    assert walker.room == 0
    assert walker.left == 2  # both branches of the sum


def test_a_long_chain_does_not_overflow_the_stack() -> None:
    y = torch.ones(1, requires_grad=True)
    for _ in range(5_000):
        y = y + 1
    assert len(Walker(100_000).walk([node_of(y)])) == 5_001


def test_the_root_of_a_leaf_is_none() -> None:
    assert root_node(torch.ones(1, requires_grad=True)) is None
    loss = diamond()
    assert root_node(loss) is loss.grad_fn
    assert root_node(torch.autograd.graph.get_gradient_edge(loss)) is loss.grad_fn


def test_the_engine_runs_the_nodes_on_the_way_to_the_inputs() -> None:
    found = Walker(100).walk([node_of(diamond())])
    targets = targets_of(list(found), found)
    order = dependencies_last(targets)
    assert all(
        order.index(j) < order.index(i) for i, leaving in enumerate(targets) for j in leaving
    )
    number = {name: i for i, name in enumerate(DIAMOND)}
    assert reachable(targets, [0], cut={number["AddBackward0"]}) == [0]
    to_sin = will_run(targets, order, [number["SinBackward0"]], captured_only=True)
    assert [name for name, runs in zip(DIAMOND, to_sin, strict=True) if runs] == DIAMOND[:2]
    through_sin = will_run(targets, order, [number["SinBackward0"]], captured_only=False)
    assert [name for name, runs in zip(DIAMOND, through_sin, strict=True) if runs] == [
        *DIAMOND[:2],
        "SinBackward0",
    ]
