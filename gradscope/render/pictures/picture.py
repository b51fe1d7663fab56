"""A picture: its boxes, links, groups and totals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gradscope.model import NodeState, SavedState

TIMES = "\N{MULTIPLICATION SIGN}"


class LinkKind(StrEnum):
    """A plain link, one that enters the shared part, one that enters an older iteration."""

    PLAIN = "plain"
    BOUNDARY = "boundary"
    CARRIED = "carried"


@dataclass(frozen=True, slots=True)
class Row:
    """One line inside a box: a text, a note at its right end, and the state that colours it."""

    text: str
    note: str = ""
    state: SavedState | None = None
    muted: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """One box: ``root`` and ``alarm`` are strips above the title, ``note`` the state as text.

    ``is_fold``: it stands for several nodes.
    """

    id: int
    title: str
    state: NodeState | None = None
    note: str = ""
    root: str = ""
    alarm: str = ""
    caption: str = ""
    rows: tuple[Row, ...] = ()
    group: int | None = None
    is_fold: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """From box ``source`` to box ``target``, standing for ``count`` edges of the graph."""

    source: int
    target: int
    kind: LinkKind = LinkKind.PLAIN
    count: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """A frame around boxes; ``parent`` is the frame that it stands in, ``is_shared`` is that of
    what several roots need.
    """

    id: int
    title: str
    parent: int | None = None
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Marks:
    """What a picture adds to its graphs: the moment, as text, and nodes of the last graph.

    A backward call stops at node ``failing``; ``highlight`` are the nodes of a finding.
    """

    failing: int | None = None
    highlight: tuple[int, ...] = ()
    moment: str = ""


UNMARKED = Marks()


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole picture; every link goes from an earlier to a later box."""

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


def one_line(text: str, limit: int = 72) -> str:
    """Return the text without control characters, cut in the middle if longer than ``limit``."""
    flat = "".join(ch if ch.isprintable() else " " for ch in text)
    if len(flat) <= limit:
        return flat
    half = (limit - 1) // 2
    return f"{flat[:half]}…{flat[-half:]}"
