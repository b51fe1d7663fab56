"""A snapshot holds columns of numbers; its nodes and edges are those that it would hold as objects."""

from __future__ import annotations

import pickle
import sys

import pytest
import torch

import gradscope
from gradscope.model import Edge, Graph, NodeState
from gradscope.record.file import dumps, loads


def chain(length: int) -> torch.Tensor:
    x = torch.rand(4, requires_grad=True)
    for i in range(length):
        x = x.sin() if i % 2 else x * 2
    return x.sum()


@pytest.fixture(scope="module")
def graph() -> Graph:
    shared = (torch.rand(2, 2, requires_grad=True) * 3).exp()
    return gradscope.snapshot((shared * shared).sum(), shared.sin().sum())


def test_nodes_and_edges_equal_the_tuples_of_their_objects(graph: Graph) -> None:
    nodes, edges = tuple(graph.nodes), tuple(graph.edges)
    assert (graph.nodes, graph.edges) == (nodes, edges) == (graph.nodes, graph.edges)
    same = Graph(nodes, edges, graph.roots)
    assert (same, hash(same), repr(same)) == (graph, hash(graph), repr(graph))
    assert graph.nodes != nodes[1:]
    assert [node.index for node in nodes] == [*range(len(graph.nodes))]


def test_they_are_asked_for_as_those_of_a_tuple_are(graph: Graph) -> None:
    nodes, edges = tuple(graph.nodes), tuple(graph.edges)
    for some in (slice(1, 3), slice(None, None, -1), slice(-2, None), -1, 0, len(edges) - 1):
        assert graph.edges[some] == edges[some]
    assert graph.nodes[-2:] == nodes[-2:]
    assert nodes[2] in graph.nodes
    assert Edge(9, 9) not in graph.edges
    assert graph.nodes.index(nodes[3]) == 3
    for place in (len(nodes), -len(nodes) - 1):
        with pytest.raises(IndexError):
            graph.nodes[place]


def test_a_storage_that_two_nodes_saved_has_one_number(graph: Graph) -> None:
    kept = {saved.storage: saved for node in graph.nodes for saved in node.saved}
    assert [(number, one.nbytes) for number, one in sorted(kept.items())] == [(1, 16), (2, 8)]
    assert graph.saved_bytes == 24


def test_they_outlive_a_recording_and_a_pickle(graph: Graph) -> None:
    assert loads(Graph, dumps(graph)) == graph == pickle.loads(pickle.dumps(graph))


def test_a_node_takes_few_bytes() -> None:
    graph = gradscope.snapshot(chain(2_000))
    every: tuple[object, ...] = (graph.nodes, graph.edges)
    columns = [getattr(of, name) for of in every for name in type(of).__slots__]  # type: ignore[attr-defined]
    assert sum(map(sys.getsizeof, columns)) < 100 * len(graph.nodes)
    states = {node.state for node in graph.nodes}
    assert states == {NodeState.LIVE, NodeState.BUFFERLESS}


def test_what_a_look_reads_numbers_no_node_anew() -> None:
    """Of a view whose base was changed torch would build a node to say whether it is a leaf."""
    weight = torch.rand(3, 3, requires_grad=True)
    with gradscope.watch():
        loss = (torch.rand(3, 3, requires_grad=True) @ weight.t()).sum()
        with torch.no_grad():
            weight.add_(1)
        before = loss.sin().grad_fn._sequence_nr()  # type: ignore[union-attr]
        assert NodeState.STALE in {node.state for node in gradscope.snapshot(loss).nodes}
        assert gradscope.check(loss)
        assert loss.sin().grad_fn._sequence_nr() == before + 1  # type: ignore[union-attr]
