"""Counts the nodes that live and those that were destroyed, by marks that die with them."""

from __future__ import annotations

from gradscope.torch_private import hidden_from_compiler


class Census:
    """Counts the marked nodes that live and those that were destroyed."""

    __slots__ = ("alive", "destroyed", "dropped", "graphs", "held")

    def __init__(self) -> None:
        self.alive = 0
        self.destroyed = 0
        self.graphs = 0
        """Graphs that live of which only the root is marked."""
        self.held = self.dropped = (0, 0)
        """Tensors and bytes that such graphs hold, and that went with such graphs."""


class Weight:
    """Counts the nodes of a graph of which only the root is marked, and what a call left in it."""

    __slots__ = ("__weakref__", "_census", "_nodes", "_saved", "holds")
    KEY = "gradscope.graph"

    def __init__(self, census: Census, nodes: int) -> None:
        self._census = census
        self._nodes = nodes
        self._saved = (0, 0)
        self.holds = False
        """Whether it holds anything."""
        census.alive += nodes
        census.graphs += 1

    def hold(self, tensors: int, nbytes: int) -> None:
        """Count this as what the graph holds now."""
        (before, bytes_before), (held, bytes_held) = self._saved, self._census.held
        self._census.held = held + tensors - before, bytes_held + nbytes - bytes_before
        self._saved = (tensors, nbytes)
        self.holds = bool(tensors or nbytes)

    def release(self, tensors: int, nbytes: int) -> tuple[int, int]:
        """Let go of up to so many; return how many others are left to find."""
        held, bytes_held = self._saved
        gone, bytes_gone = min(held, tensors), min(bytes_held, nbytes)
        self.hold(held - gone, bytes_held - bytes_gone)
        return tensors - gone, nbytes - bytes_gone

    def recount(self) -> tuple[int, int]:
        """Leave the nodes to marks of their own; return what the graph holds, which is saved
        anew.
        """
        self._census.alive -= self._nodes
        self._nodes = 0
        return self._saved

    @hidden_from_compiler
    def __del__(self) -> None:
        census, (tensors, nbytes) = self._census, self._saved
        census.alive -= self._nodes
        census.graphs -= 1
        census.destroyed += self._nodes
        if self.holds:
            census.dropped = census.dropped[0] + tensors, census.dropped[1] + nbytes
            self.hold(0, 0)
