"""Counts the nodes that live and those that were destroyed, by marks that die with them."""

from __future__ import annotations

from collections.abc import Callable

from gradscope.torch_private import hidden_from_compiler


class Census:
    """Counts the marked nodes that live and those that were destroyed."""

    __slots__ = ("alive", "destroyed", "graphs")

    def __init__(self) -> None:
        self.alive = 0
        self.destroyed = 0
        self.graphs = 0
        """Graphs that live of which only the root is marked."""


class Weight:
    """Counts the nodes of a graph of which only the root is marked, and what a call left in it."""

    __slots__ = ("_census", "_dropped", "_nodes", "_saved")
    KEY = "gradscope.graph"

    def __init__(self, census: Census, nodes: int) -> None:
        self._census = census
        self._nodes = nodes
        self._saved = (0, 0)
        self._dropped: Callable[[int, int], None] | None = None
        census.alive += nodes
        census.graphs += 1

    def leave_to_marks(self) -> None:
        """Count the nodes no more: each has a mark of its own now."""
        self._census.alive -= self._nodes
        self._nodes = 0

    def hold(self, tensors: int, nbytes: int, dropped: Callable[[int, int], None]) -> None:
        """Call ``dropped`` with so many saved tensors and bytes once the graph is gone."""
        self._saved = self._saved[0] + tensors, self._saved[1] + nbytes
        self._dropped = dropped

    @hidden_from_compiler
    def __del__(self) -> None:
        census = self._census
        census.alive -= self._nodes
        census.graphs -= 1
        census.destroyed += self._nodes
        if self._dropped is not None:
            self._dropped(*self._saved)
