"""The options of a picture: what a user may ask of it, in the one place that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


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
