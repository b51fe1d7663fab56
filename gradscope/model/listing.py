"""Tuples that print as their entries, one after the other, or as a sentence where there is none."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from gradscope.model.printed import Printed, text_of

T = TypeVar("T")


class Listing(Printed, tuple[T, ...]):
    """A tuple whose printed form is that of its entries, each on separate lines."""

    __slots__ = ()
    nothing: ClassVar[str] = "nothing"

    __repr__ = Printed.__str__


@text_of.register
def _entries(listing: Listing) -> str:  # type: ignore[type-arg]
    return "\n".join(map(str, listing)) or listing.nothing
