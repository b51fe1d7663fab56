"""What a graph image shows, before it has a place: boxes, links, groups and the totals of the title."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from gradscope.model import NodeState, SavedState

TIMES = "\N{MULTIPLICATION SIGN}"


class BoxKind(StrEnum):
    """One node, one leaf, several nodes folded to one box, or the end of a link that goes on elsewhere."""

    NODE = "node"
    LEAF = "leaf"
    FOLD = "fold"
    STUB = "stub"


class LinkKind(StrEnum):
    """A plain link, one that enters the shared part, one that enters an older iteration."""

    PLAIN = "plain"
    BOUNDARY = "boundary"
    CARRIED = "carried"


class GroupKind(StrEnum):
    """Why boxes are drawn inside one frame."""

    SHARED = "shared"
    ITERATION = "iteration"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Row:
    """One line inside a box: a text, a note at its right end, and the state that colours it."""

    text: str
    note: str = ""
    state: SavedState | None = None
    muted: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """One box. ``root`` and ``alarm`` are the strips above the title, ``note`` says the state in words."""

    id: int
    kind: BoxKind
    title: str
    state: NodeState | None = None
    note: str = ""
    root: str = ""
    alarm: str = ""
    caption: str = ""
    rows: tuple[Row, ...] = ()
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """From box ``source`` to box ``target``, standing for ``count`` edges of the graph."""

    source: int
    target: int
    kind: LinkKind = LinkKind.PLAIN
    count: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """A frame around boxes; ``parent`` is the frame that it stands in."""

    id: int
    kind: GroupKind
    title: str
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Marks:
    """What a picture adds to its graphs: the moment it shows, in words, and nodes of the last graph.

    A backward call stops at node ``failing``; ``highlight`` are the nodes of a finding.
    """

    failing: int | None = None
    highlight: tuple[int, ...] = ()
    moment: str = ""


UNMARKED = Marks()


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole picture. Boxes are in an order in which every link goes from an earlier to a later one."""

    title: str
    subtitle: str = ""
    boxes: tuple[Box, ...] = ()
    links: tuple[Link, ...] = ()
    groups: tuple[Group, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def states(self) -> tuple[NodeState, ...]:
        """The states that the legend must explain, in the order of their definition."""
        present = {box.state for box in self.boxes}
        return tuple(state for state in NodeState if state in present)

    def frames_of(self, box: Box) -> Iterator[int]:
        """Yield the numbers of the frames that a box stands in, innermost first."""
        group = box.group
        while group is not None:
            yield group
            group = next(g.parent for g in self.groups if g.id == group)


def ranks(count: int, links: Iterable[Link]) -> list[int]:
    """Row of each box in a layered layout: the longest path from a box that nothing points to."""
    below: list[list[int]] = [[] for _ in range(count)]
    for link in links:
        below[link.source].append(link.target)
    rank = [0] * count
    for box in range(count):  # sources come before targets, see Picture
        for target in below[box]:
            rank[target] = max(rank[target], rank[box] + 1)
    return rank


def span(picture: Picture) -> int:
    """Sum of the lengths of all links in rows: what the cost of a layered layout grows with."""
    rank = ranks(len(picture.boxes), picture.links)
    return sum(rank[link.target] - rank[link.source] for link in picture.links)


def one_line(text: str, limit: int = 72) -> str:
    """The text without line breaks or control characters, cut in the middle when longer than ``limit``."""
    flat = "".join(ch if ch.isprintable() else " " for ch in text)
    if len(flat) <= limit:
        return flat
    half = (limit - 1) // 2
    return f"{flat[:half]}…{flat[-half:]}"
