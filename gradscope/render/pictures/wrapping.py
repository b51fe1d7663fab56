"""Cuts a tall picture into columns, and very long links into pairs of numbered stubs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gradscope.render.pictures.picture import Box, BoxKind, Link, Picture, Size, ranks

_TALL = 1500.0
"""A picture up to so many points tall stays in one column."""

_ASPECT = 1.1
"""Columns are added until the picture is at most about so many times taller than wide."""

_GAP = 34.0
_LONG = 25
"""A link over more rows than this is cut: it would only be a line along the whole picture."""

_CROSSING = 3
"""No cut goes through more links than this: a column too many is worse than a tall one."""


def wrap(picture: Picture, sizes: Sequence[Size]) -> list[Picture]:
    """Return the columns of the picture, left to right.

    It stays one column when it is not tall or cannot be cut cleanly.
    """
    rank = ranks(picture)
    cuts = _cuts(picture, sizes, rank)
    column = [sum(r >= cut for cut in cuts) for r in rank]
    cut = [
        link
        for link in picture.links
        if column[link.source] != column[link.target] or _is_long(link, rank)
    ]
    return [_piece(picture, column, cut, at) for at in range(len(cuts) + 1)] if cut else [picture]


def _is_long(link: Link, rank: list[int]) -> bool:
    return rank[link.target] - rank[link.source] > _LONG


def _cuts(picture: Picture, sizes: Sequence[Size], rank: list[int]) -> list[int]:
    """Return the rows at which a new column begins."""
    rows = max(rank, default=0) + 1
    heights, widths = [0.0] * rows, [0.0] * rows
    for (width, height), row in zip(sizes, rank, strict=True):
        heights[row] = max(heights[row], height + _GAP)
        widths[row] += width + _GAP
    total, width = sum(heights), max(widths, default=1.0)
    columns = min(8, math.ceil(math.sqrt(total / (width * _ASPECT)))) if total > _TALL else 1
    crossing = [0] * (rows + 1)
    for link in picture.links:
        if not _is_long(link, rank):
            for row in range(rank[link.source] + 1, rank[link.target] + 1):
                crossing[row] += 1
    split = _split_frames(picture, rank, rows)
    cuts: list[int] = []
    top = 0.0
    tops = [top := top + height for height in heights]
    height = total / columns
    for n in range(1, columns):
        off = [abs(bottom - total * n / columns) for bottom in tops]
        near = [r for r in range(1, rows) if off[r - 1] < height * 0.25 and r not in cuts]
        cost = {r: 2 * crossing[r] + 2 * split[r] + 6 * off[r - 1] / height for r in near}
        best = min(near, key=cost.__getitem__, default=0)
        if best and crossing[best] <= _CROSSING:
            cuts.append(best)
    return sorted(cuts)


def _split_frames(picture: Picture, rank: list[int], rows: int) -> list[int]:
    """Return how many frames a cut above each row would take apart."""
    extent: dict[int, tuple[int, int]] = {}
    for box in picture.boxes:
        for frame in picture.frames_of(box):
            low, high = extent.get(frame, (rows, 0))
            extent[frame] = (min(low, rank[box.id]), max(high, rank[box.id]))
    return [sum(low < row <= high for low, high in extent.values()) for row in range(rows + 1)]


def _piece(picture: Picture, column: list[int], cut: list[Link], at: int) -> Picture:
    """Return the boxes of one column with the stubs of the links that leave or enter it."""
    number = {box: n for n, box in enumerate(sorted({link.target for link in cut}), 1)}
    here = [box for box in picture.boxes if column[box.id] == at]
    cut_links = frozenset(cut)
    boxes: list[Box] = []
    links: list[Link] = []
    place: dict[int, int] = {}
    before: dict[int, Link] = {}
    for link in cut:
        if column[link.target] == at:
            before.setdefault(link.target, link)
    for box in here:
        if box.id in before:
            boxes.append(Box(len(boxes), BoxKind.STUB, f"from {number[box.id]}"))
            links.append(Link(len(boxes) - 1, len(boxes), before[box.id].kind))
        place[box.id] = len(boxes)
        boxes.append(replace(box, id=len(boxes)))
    whole = [k for k in picture.links if column[k.source] == at and k not in cut_links]
    links += [replace(k, source=place[k.source], target=place[k.target]) for k in whole]
    for link in cut:
        if column[link.source] == at:
            title = f"to {number[link.target]}: {picture.boxes[link.target].title}"
            links.append(Link(place[link.source], len(boxes), link.kind, link.count))
            boxes.append(Box(len(boxes), BoxKind.STUB, title))
    used = {frame for box in here for frame in picture.frames_of(box)}
    begun = {box.group for box in picture.boxes if column[box.id] < at}
    groups = tuple(
        replace(group, title=f"{group.title} (continued)") if group.id in begun else group
        for group in picture.groups
        if group.id in used
    )
    links.sort(key=lambda link: (link.source, link.target))
    return replace(picture, boxes=tuple(boxes), links=tuple(links), groups=groups)
