"""Pictures of graphs: what a user may ask of one, its boxes, arrows, clusters and totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from gradscope.fixing.gradient_paths import LineState
from gradscope.model import NodeState, SavedState

TIMES = "\N{MULTIPLICATION SIGN}"
SHARED, OLDER = "the shared part", "an older graph"


class BoxRow(NamedTuple):
    """One line inside a box: a text, a note at its right end, and the state that colours it."""

    text: str
    note: str = ""
    state: SavedState | None = None
    muted: bool = False


class Box(NamedTuple):
    """One box: ``root`` and ``alarm`` are strips above the title, ``note`` the state as text.

    ``is_fold``: it stands for several nodes, or for parameters.
    """

    id: int
    title: str
    state: NodeState | LineState | None = None
    note: str = ""
    root: str = ""
    alarm: str = ""
    caption: str = ""
    rows: tuple[BoxRow, ...] = ()
    cluster: int | None = None
    is_fold: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """From box ``source`` to box ``target``, standing for ``count`` edges of the graph.

    ``enters`` says into what it leads, if that is the shared part, or an older graph.
    """

    source: int
    target: int
    enters: str = ""
    count: int = 1
    state: LineState | None = None


class Cluster(NamedTuple):
    """A frame around boxes; ``parent`` is the frame that it stands in, ``is_shared`` is that of
    what several roots need.
    """

    id: int
    title: str
    parent: int | None = None
    is_shared: bool = False
    state: LineState | None = None


class Marking(NamedTuple):
    """What a picture adds to its graphs: the moment, as text, and nodes of the last graph.

    ``highlight`` are the nodes of a finding; ``stops``: a backward call stops at the first of them.
    """

    highlight: tuple[int, ...] = ()
    stops: bool = False
    moment: str = ""


UNMARKED = Marking()


class Picture(NamedTuple):
    """A whole picture; every arrow goes from an earlier to a later box.

    ``is_way``: it shows lines of the program, from left to right, and no nodes.
    """

    title: str
    subtitle: str = ""
    boxes: tuple[Box, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    notes: tuple[str, ...] = ()
    is_way: bool = False


def one_line(text: str, limit: int = 72) -> str:
    """Return the text without control characters, cut in the middle if longer than ``limit``."""
    flat = "".join(ch if ch.isprintable() else " " for ch in text)
    if len(flat) <= limit:
        return flat
    half = (limit - 1) // 2
    return f"{flat[:half]}…{flat[-half:]}"


class DrawOptions(TypedDict, total=False):
    """The fields of ``Options`` as the keywords that the public functions take."""

    focus: str | None
    depth: int | None
    fold: bool
    sites: bool


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks of a picture; ``gradscope.draw`` explains each option."""

    focus: str | None = None
    depth: int | None = None
    fold: bool = True
    sites: bool = False


DEFAULTS = Options()
