"""Cuts a tall picture into columns side by side, and very long links into pairs of numbered stubs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gradscope.render.pictures.picture import Box, BoxKind, Link, Picture, ranks

_TALL = 1500.0
"""A picture up to so many points tall stays in one column."""

_ASPECT = 1.1
"""Columns are added until the picture is at most about so many times taller than wide."""

_GAP = 34.0
_LONG = 25
"""A link over more rows than this is cut: it would only be a line along the whole picture."""

_CROSSING = 3
"""No cut goes through more links than this: a column too many is worse than a tall one."""


def wrap(picture: Picture, sizes: Sequence[tuple[float, float]]) -> list[Picture]:
    """The columns of the picture, left to right; one column when it is not tall or cannot be cut cleanly."""
    rank = ranks(len(picture.boxes), picture.links)
    cuts = _cuts(picture, sizes, rank)
    column = [sum(r >= cut for cut in cuts) for r in rank]
    long = {
        n
        for n, k in enumerate(picture.links)
        if column[k.source] != column[k.target] or _is_long(k, rank)
    }
    if not long:
        return [picture]
    ends = sorted({picture.links[n].target for n in long})
    number = {box: n for n, box in enumerate(ends, 1)}
    return [_piece(picture, column, long, number, at) for at in range(len(cuts) + 1)]


def _is_long(link: Link, rank: list[int]) -> bool:
    return rank[link.target] - rank[link.source] > _LONG


def _cuts(picture: Picture, sizes: Sequence[tuple[float, float]], rank: list[int]) -> list[int]:
    """Rows at which a new column begins."""
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
    for n in range(1, columns):
        ideal = total * n / columns
        near = [
            r
            for r in range(1, rows)
            if abs(tops[r - 1] - ideal) < total / columns * 0.25 and r not in cuts
        ]
        if near:
            height = total / columns
            best = min(
                near,
                key=lambda r: (
                    2 * crossing[r] + 2 * split[r] + 6 * abs(tops[r - 1] - ideal) / height
                ),
            )
            if crossing[best] <= _CROSSING:
                cuts.append(best)
    return sorted(cuts)


def _split_frames(picture: Picture, rank: list[int], rows: int) -> list[int]:
    """How many frames a cut above each row would take apart."""
    extent: dict[int, tuple[int, int]] = {}
    for box in picture.boxes:
        group = box.group
        while group is not None:
            low, high = extent.get(group, (rows, 0))
            extent[group] = (min(low, rank[box.id]), max(high, rank[box.id]))
            group = picture.groups[group].parent
    return [sum(low < row <= high for low, high in extent.values()) for row in range(rows + 1)]


def _piece(
    picture: Picture, column: list[int], long: set[int], number: dict[int, int], at: int
) -> Picture:
    """The boxes of one column with the stubs of the links that leave or enter it."""
    boxes: list[Box] = []
    links: list[Link] = []
    place: dict[int, int] = {}
    before: dict[int, Link] = {}
    for n in sorted(long):
        link = picture.links[n]
        if column[link.target] == at:
            before.setdefault(link.target, link)
    tails = [picture.links[n] for n in sorted(long) if column[picture.links[n].source] == at]
    for box in picture.boxes:
        if column[box.id] != at:
            continue
        if box.id in before:
            boxes.append(Box(len(boxes), BoxKind.STUB, f"from {number[box.id]}", group=None))
        place[box.id] = len(boxes)
        boxes.append(replace(box, id=len(boxes)))
        if box.id in before:
            links.append(Link(len(boxes) - 2, len(boxes) - 1, before[box.id].kind))
    for n, link in enumerate(picture.links):
        if n not in long and column[link.source] == at:
            links.append(replace(link, source=place[link.source], target=place[link.target]))
    for link in tails:
        title = f"to {number[link.target]}: {picture.boxes[link.target].title}"
        links.append(Link(place[link.source], len(boxes), link.kind, link.count))
        boxes.append(Box(len(boxes), BoxKind.STUB, title, group=None))
    used: set[int] = set()
    for box in boxes:
        group = box.group
        while group is not None:
            used.add(group)
            group = picture.groups[group].parent
    begun = {box.group for box in picture.boxes if column[box.id] < at}
    groups = tuple(
        replace(group, title=f"{group.title} (continued)") if group.id in begun else group
        for group in picture.groups
        if group.id in used
    )
    return replace(
        picture,
        boxes=tuple(boxes),
        links=tuple(sorted(links, key=lambda k: (k.source, k.target))),
        groups=groups,
    )
