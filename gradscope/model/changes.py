"""What two looks at backward graphs differ in."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.model.graph import Node
from gradscope.model.listing import Listing


@dataclass(frozen=True, slots=True)
class Change:
    """One node, and whether it ``stayed``, was ``added`` or is ``gone``.

    ``edges`` are those that leave it: one of the same words, and the node that the edge leads to.
    """

    what: str
    node: Node
    edges: tuple[tuple[str, str], ...] = ()


class Changes(Listing[Change]):
    """The nodes of two graphs, those that stayed first; print it to read it."""

    __slots__ = ()

    @property
    def stayed(self) -> tuple[Node, ...]:
        """Nodes of both graphs, as they are in the later one."""
        return tuple(change.node for change in self if change.what == "stayed")

    @property
    def added(self) -> tuple[Node, ...]:
        """Nodes of the later graph only."""
        return tuple(change.node for change in self if change.what == "added")

    @property
    def gone(self) -> tuple[Node, ...]:
        """Nodes of the earlier graph only: the later one does not lead to them.

        :func:`gradscope.follow` shows whether they are alive.
        """
        return tuple(change.node for change in self if change.what == "gone")
