"""Writes leaves into the boxes of the nodes that use them, so that parameters cost no boxes and no links."""

from __future__ import annotations

import re
from collections.abc import Set

from gradscope.model import NodeState
from gradscope.render.pictures.merging import Merged

_VIEW = re.compile(
    r"(T|View|UnsafeView|ReshapeAlias|Transpose|Permute|Expand|ToCopy|Squeeze|Unsqueeze|Alias|Slice|Select)Backward\d+"
)
"""What commonly stands between a parameter and the node that computes with it."""


def absorb_leaves(
    merged: Merged, kept: Set[int | None], *, users: int, views: bool
) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Write each leaf of at least ``users`` users into their boxes, with the views between it and them.

    Returns the leaves of each user, and for each view between the node that it went into. ``kept`` nodes stay.
    """
    inlined: dict[int, list[int]] = {}
    absorbed: dict[int, int] = {}
    for leaf, node in enumerate(merged.nodes):
        if not node.is_leaf or leaf in kept or not merged.sources[leaf] or merged.targets[leaf]:
            continue
        if len(set(merged.sources[leaf])) < users:
            continue
        for user in merged.sources[leaf]:
            between = []
            while (
                views
                and _VIEW.fullmatch(merged.nodes[user].name)
                and user not in kept
                and merged.nodes[user].state is NodeState.BUFFERLESS
                and len(set(merged.targets[user])) == 1
                and len(set(merged.sources[user])) == 1
            ):
                between.append(user)
                user = merged.sources[user][0]
            absorbed.update(dict.fromkeys(between, user))
            leaves = inlined.setdefault(user, [])
            if leaf not in leaves:
                leaves.append(leaf)
    return inlined, absorbed
