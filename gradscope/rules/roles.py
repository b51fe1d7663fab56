"""What a part that two graphs share is for, and who is trained by what: facts for a choice."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from gradscope.model.graph import Site
from gradscope.units import common_module

_MOST_NAMED = 3


class Cut(Enum):
    """Which of the two losses may do without the gradient of a variable that they share."""

    FIRST = "first"
    SECOND = "second"
    NEITHER = "neither"
    BOTH = "both"


class Loss(NamedTuple):
    """One of two losses: its name, its backward call, and by name the optimizers that step with
    it.
    """

    name: str
    site: Site
    steps: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return how a sentence names it: ```d_loss` (line 31)``."""
        return f"{f'`{self.name}`' if self.name else 'the loss'} (line {self.site.line})"


class Link(NamedTuple):
    """A variable by which both losses reach the shared part, and which of them may do without.

    ``leaves`` are the parameters behind it. ``lost_first`` and ``lost_second`` are those that get
    gradient from that loss in no other way; ``only``: the first loss trains nothing else.
    """

    name: str
    cut: Cut
    leaves: tuple[str, ...]
    lost_first: tuple[str, ...] = ()
    lost_second: tuple[str, ...] = ()
    only: bool = False


class Roles(NamedTuple):
    """What is known of a shared part: its parameters (``leaves``), and the two losses.

    ``known``: the optimizers that step with both are known. ``links`` are the variables between.
    ``constant`` says in half a sentence why it is a constant for the second loss; empty if it is
    none. ``total``: what losses are
    added to is a total of values.
    """

    leaves: tuple[str, ...] = ()
    first: Loss | None = None
    second: Loss | None = None
    known: bool = False
    links: tuple[Link, ...] = ()
    constant: str = ""
    same_optimizer: bool = False
    total: bool = False


UNKNOWN = Roles()
"""Where nothing was asked."""


def grouped(names: Iterable[str]) -> str:
    """Return parameters as text: those of one module as ``encoder.*``, an unnamed one as it is."""
    by_root: dict[str, list[str]] = {}
    for name in names:
        root, _, rest = name.partition(".")
        root += rest.partition(".")[0] if root == "self" else ""  # of one object, part by part
        by_root.setdefault(root, []).append(name)
    words = [_common(group) for group in by_root.values()]
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    listed = [word if " " in word else f"`{word}`" for word in words[:_MOST_NAMED]]
    if more or len(listed) < 2:
        return ", ".join(listed) + more
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def _common(names: list[str]) -> str:
    """Return what parameters of one variable have in common."""
    if len(names) == 1:
        return names[0]
    common = common_module(name.rpartition(".")[0] for name in names)
    return f"{common}.*" if common else names[0]
