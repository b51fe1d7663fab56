"""Finds the leaves that a backward call reaches, and those it reaches through old graphs only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from gradscope.collect.engine_call import EngineCall
from gradscope.program.tensors import node_of
from gradscope.torch_private import NO_SEQUENCE_NR

_MOST_NODES = 20_000  # of a graph, in one walk


def leaves_of(asked: EngineCall) -> list[Any]:
    """Return the leaves that a call reaches, or those that it was asked for."""
    inputs = [_tensor_of(one) for one in asked.inputs]
    if inputs:
        return [one for one in inputs if isinstance(one, torch.Tensor) and one.is_leaf]
    return list(_reached(map(_node_of, asked.outputs), lambda node, following: True).values())


def is_asked(tensor: Any, asked: EngineCall) -> bool:
    """Return whether a call was asked for this leaf."""
    return any(_tensor_of(one) is tensor for one in asked.inputs)


def leaves_through_state(asked: EngineCall, ends: Sequence[int]) -> list[int]:
    """Return the ids of the leaves that a call reaches only through a state that is carried from
    one run of its line to the next.

    ``ends`` are the sequence numbers at the ends of the runs before.
    """

    def run_of(node: Any) -> int:
        number = node._sequence_nr()
        return len(ends) if number == NO_SEQUENCE_NR else bisect_right(ends, number)

    def in_this_run(node: Any, following: Any) -> bool:
        return _is_leaf(following) or run_of(following) >= len(ends)

    def from_run_to_run(node: Any, following: Any) -> bool:
        return _is_leaf(following) or run_of(node) - run_of(following) <= 1

    roots = [node for node in map(_node_of, asked.outputs) if node is not None]
    fresh, carried = _reached(roots, in_this_run), _reached(roots, from_run_to_run)
    return [key for key in carried if key not in fresh]


def _tensor_of(one: Any) -> Any:
    """Return the leaf that an input of a call names."""
    return getattr(one.node, "variable", None) if isinstance(one, GradientEdge) else one


def _node_of(output: Any) -> Any:
    return output.node if isinstance(output, GradientEdge) else node_of(output)


def _is_leaf(node: Any) -> bool:
    return getattr(node, "variable", None) is not None


def _reached(roots: Iterable[Any], follow: Callable[[Any, Any], bool]) -> dict[int, Any]:
    """Return by id the leaves that lie behind nodes, over the edges that ``follow`` takes."""
    leaves: dict[int, Any] = {}
    stack = [root for root in roots if root is not None]
    met = set(stack)
    while stack and len(met) < _MOST_NODES:
        node = stack.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves[id(leaf)] = leaf
        for following, _ in node.next_functions:
            if following is not None and following not in met and follow(node, following):
                met.add(following)
                stack.append(following)
    return leaves
