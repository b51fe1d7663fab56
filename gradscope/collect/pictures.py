"""Decides which of the graphs that backward calls meet are pictured, within a share of the time."""

from __future__ import annotations

import time
from types import FrameType

from gradscope.collect.look import Look
from gradscope.collect.shapes import Shape, Shapes
from gradscope.collect.snapshot import picture
from gradscope.collect.state import State
from gradscope.model import Graph, Root
from gradscope.program.sites import user_frames

# Taken whatever they cost; later ones only while they stay cheap.
_FREE_PICTURES, _FREE_NODES = 20, 2_000
_SHARE = 0.05  # of the run's time
_MOST_NODES = 50_000


class Pictures:
    """One picture of each shape of graph, and one of every graph that something is wrong with."""

    def __init__(self, state: State, shapes: Shapes) -> None:
        self._state = state
        self._shapes = shapes
        self._taken = self._nodes = 0
        self._seconds = 0.0

    def of(
        self, shape: Shape, look: Look, roots: tuple[Root, ...], frame: FrameType | None
    ) -> tuple[Graph | None, bool]:
        """Return the graph of a look as plain data, and whether the picture is a new one."""
        graph = shape.graph
        saving = self._state.saving
        if graph is not None:
            if self._taken > _FREE_PICTURES or self._state.calls > 2 * _FREE_PICTURES:
                saving.detailed = False
        else:
            detailed, saving.detailed = saving.detailed, True
            # Without the modules, and without the places of what the hooks did not see, the next
            # graph of its shape is pictured.
            worth_it = detailed and not look.unhooked and self._is_cheap(look)
            if not worth_it and not look.freed and not look.stale:
                return None, False
            if len(self._state.running) > 1 and any(t.is_run_elsewhere for t in look.tokens):
                return None, False
            graph = self._take(look, roots, frame)
        new = shape.graph is not graph
        if new:
            self._shapes.keep_picture(shape, graph)
        for i, token in enumerate(look.tokens):
            if token.graph is None:
                token.graph, token.index = graph, i
        return graph, new

    def _is_cheap(self, look: Look) -> bool:
        in_time = self._seconds < _SHARE * self._state.elapsed()
        free = self._taken < _FREE_PICTURES and self._nodes < _FREE_NODES
        return len(look.nodes) <= _MOST_NODES and (in_time or free)

    def _take(self, look: Look, roots: tuple[Root, ...], frame: FrameType | None) -> Graph:
        before = time.thread_time()
        names = self._state.names
        names.learn_variables(user_frames(frame))
        graph = picture(
            look.nodes, look.index, roots, names=names, left=look.left, runs=look.will_run
        )
        self._taken += 1
        self._nodes += len(look.nodes)
        self._seconds += time.thread_time() - before
        return graph
