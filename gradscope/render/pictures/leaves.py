"""Writes leaves into the boxes of their users, so that parameters cost no boxes and no links."""

from __future__ import annotations

import re
from collections.abc import Set

from gradscope.model import NodeState
from gradscope.render.pictures.merging import Merged

_VIEW = re.compile(
    r"(T|View|UnsafeView|ReshapeAlias|Transpose|Permute|Expand|ToCopy|Squeeze|Unsqueeze|Alias"
    r"|Slice|Select)Backward\d+"
)
"""What commonly stands between a parameter and the node that computes with it."""


def absorb_leaves(
    merged: Merged, kept: Set[int | None], *, users: int, views: bool
) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Write each leaf of at least ``users`` users into their boxes, with the views in between.

    Return the leaves of each user, and for each view in between the node that it went into.
    ``kept`` nodes stay.
    """
    inlined: dict[int, list[int]] = {}
    absorbed: dict[int, int] = {}

    def passes(user: int) -> bool:
        node = merged.nodes[user]
        return (
            views
            and _VIEW.fullmatch(node.name) is not None
            and user not in kept
            and node.state is NodeState.BUFFERLESS
            and len(set(merged.targets[user])) == len(set(merged.sources[user])) == 1
        )

    for leaf, node in enumerate(merged.nodes):
        if not node.is_leaf or leaf in kept or not merged.sources[leaf] or merged.targets[leaf]:
            continue
        if len(set(merged.sources[leaf])) < users:
            continue
        for user in merged.sources[leaf]:
            between = []
            while passes(user):
                between.append(user)
                user = merged.sources[user][0]
            absorbed.update(dict.fromkeys(between, user))
            leaves = inlined.setdefault(user, [])
            if leaf not in leaves:
                leaves.append(leaf)
    return inlined, absorbed
