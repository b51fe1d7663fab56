"""Tells where the nodes of a graph were made from graphs like it whose places are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradscope.collect.shapes import Shape
from gradscope.program.sites import Place

_REACHES = (4, 3, 2)
"""How many neighbours of a node on either side, in depth-first order, have to be the same."""

_MOST_NODES = 20_000  # of known graphs

_Kinds = tuple[type | None, ...]


def places_by_context(kinds: tuple[type, ...], shapes: Iterable[Shape]) -> tuple[Place | None, ...]:
    """Return where nodes of these kinds, in depth-first order, were made.

    A node is taken for one of a known graph where its kind and those of its neighbours are the same
    as there; where that fits nodes of several places, its place is None.
    """
    known, left = [], _MOST_NODES
    for shape in shapes:
        left -= len(shape.kinds)
        if left < 0:
            break
        known.append(shape)
    found: list[Place | None] = [None] * len(kinds)
    waiting = list(range(len(kinds)))
    for reach in _REACHES:
        table: dict[_Kinds, set[Place | None]] = {}
        for shape in known:
            for window, place in zip(_windows(shape.kinds, reach), shape.places, strict=True):
                table.setdefault(window, set()).add(place)
        windows = _windows(kinds, reach)
        unknown = []
        for i in waiting:
            places = table.get(windows[i])
            if places is None:
                unknown.append(i)
            elif len(places) == 1:
                (found[i],) = places
        waiting = unknown
    return tuple(found)


def _windows(kinds: tuple[type, ...], reach: int) -> Sequence[_Kinds]:
    nothing = (None,) * reach
    padded = (*nothing, *kinds, *nothing)
    return [padded[i : i + 2 * reach + 1] for i in range(len(kinds))]
