"""Hand-made graphs for the tests of pictures: plain data, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any
from xml.etree import ElementTree

from gradscope.model import Edge, Graph, Node, NodeState, Root, SavedState, SavedTensor, Site


def saved(
    name: str, *shape: int, storage: int = 0, state: SavedState = SavedState.SAVED
) -> SavedTensor:
    return SavedTensor(name, shape, "f32", "cpu", 4 * prod(shape), storage=storage, state=state)


def leaf(index: int, name: str, shape: str = "f32[4]") -> Node:
    label = f"{name} {shape}"
    return Node(index, "AccumulateGrad", NodeState.BUFFERLESS, variable=name, variable_label=label)


def op(
    index: int, name: str, number: int, state: NodeState = NodeState.BUFFERLESS, **more: object
) -> Node:
    return Node(index, f"{name}Backward0", state, number, **more)  # type: ignore[arg-type]


def graph(nodes: Sequence[Node], edges: Sequence[tuple[int, int]], **roots: int) -> Graph:
    ends = tuple(Root(node, name, "f32[]") for name, node in roots.items())
    return Graph(tuple(nodes), tuple(Edge(*edge) for edge in edges), ends)


def chain(length: int, names: Sequence[str] = ("Mul",), **more: Any) -> Graph:
    """``length`` operations one after the other, then the leaf ``x``; sequence numbers from ``length`` down to 1."""
    nodes = [op(n, names[n % len(names)], length - n, **more) for n in range(length)]
    return graph([*nodes, leaf(length, "x")], [(n, n + 1) for n in range(length)], loss=0)


def two_losses() -> Graph:
    """``loss_a`` was run backward: what it shares with ``loss_b`` is freed."""
    gone: dict[str, Any] = {"state": NodeState.FREED, "freed_by": 1}
    shared = (saved("result", 32, 256, storage=1, state=SavedState.FREED),)
    own = (saved("self", 32, storage=2, state=SavedState.FREED),)
    site = Site("train.py", 12, function="step")
    nodes = [
        op(0, "MseLoss", 5, saved=own, **gone),
        op(1, "NllLoss", 6, NodeState.LIVE, saved=(saved("self", 32, storage=3),)),
        op(2, "Relu", 3, saved=shared, site=site, **gone),
        op(3, "Addmm", 2, module="fc1", module_class="Linear", **gone),
        leaf(4, "fc1.weight", "f32[256, 784]"),
    ]
    return graph(nodes, [(0, 2), (1, 2), (2, 3), (3, 4)], loss_a=0, loss_b=1)


def hostile() -> Graph:
    module: dict[str, Any] = {"module": "mod\\ule.0", "module_class": "C<"}
    script = "a|b{c}\n</svg><script>alert(1)</script>"
    nodes = [
        op(0, '<b>evil</b>"|{}\\n\\', 2, NodeState.LIVE, saved=(saved('se"lf<i>', 1),)),
        op(1, script, 1, NodeState.STALE, **module),
    ]
    return graph(nodes, [(0, 1)], **{'lo"ss<>&\\': 0})


def iterations(count: int, length: int = 3) -> Graph:
    """A state carried over ``count`` backward calls: each generation has ``length`` nodes and uses the leaf ``w``."""
    nodes = []
    total = count * length
    for index in range(total):
        age = count - 1 - index // length
        state = NodeState.LIVE if age == count - 1 else NodeState.FREED
        name = ("Tanh", "Add", "Mm")[index % 3]
        nodes.append(op(index, name, total - index, state, built_after=age))
    edges = [(n, n + 1) for n in range(total - 1)]
    edges += [(n, total) for n in range(total) if n % length == length - 1]
    return graph([*nodes, leaf(total, "w")], edges, loss=0)


def texts(svg: bytes) -> list[str]:
    """The texts of a picture, in their order."""
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [text.text or "" for text in texts]


def with_failing(whole: Graph, index: int, state: NodeState) -> Graph:
    nodes = list(whole.nodes)
    nodes[index] = replace(nodes[index], state=state)
    return replace(whole, nodes=tuple(nodes))
