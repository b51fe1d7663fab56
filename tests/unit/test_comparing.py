"""``gradscope.compare``: what two looks have in common, by the identity of nodes and not by their likeness."""

from __future__ import annotations

import torch

import gradscope


def test_the_shared_part_stays_and_the_rest_is_exchanged() -> None:
    a, t = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3)
    y = t @ a
    loss = (t @ y).sum()
    before = gradscope.snapshot(loss)
    loss = (t @ y).sum()  # the same operations, other nodes
    changes = gradscope.compare(before, gradscope.snapshot(loss))
    assert [node.name for node in changes.stayed] == ["MmBackward0", "AccumulateGrad"]
    assert [node.name for node in changes.added] == ["SumBackward0", "MmBackward0"]
    assert [node.name for node in changes.gone] == ["SumBackward0", "MmBackward0"]
    first_line = str(changes).splitlines()[0]
    assert (
        first_line
        == "stayed 2 nodes and 1 edge; added 2 nodes and 2 edges; gone 2 nodes and 2 edges"
    )


def test_one_graph_at_two_moments_has_the_later_states() -> None:
    a = torch.rand(3, requires_grad=True)
    loss = a.exp().sum()
    before = gradscope.snapshot(loss)
    loss.backward()
    changes = gradscope.compare(before, gradscope.snapshot(loss))
    assert [node.state for node in changes.stayed] == ["bufferless", "freed", "bufferless"]
    assert not changes.added
    assert not changes.gone


def test_two_unnamed_leaves_of_one_shape_are_two() -> None:
    leaves = [torch.rand(3, requires_grad=True) for _ in range(2)]
    graph = gradscope.snapshot(leaves[0] + leaves[1])
    changes = gradscope.compare(graph, graph)
    assert len(changes.stayed) == len(graph.nodes) == 3
