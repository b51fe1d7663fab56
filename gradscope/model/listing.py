"""Tuples that a person can read when they are printed: one entry after the other, or a sentence where there is none."""

from __future__ import annotations

from typing import ClassVar, TypeVar

T = TypeVar("T")


class Listing(tuple[T, ...]):
    """A tuple whose printed form is that of its entries, each on lines of its own."""

    __slots__ = ()
    nothing: ClassVar[str] = "nothing"

    def __str__(self) -> str:
        return "\n".join(str(entry) for entry in self) or self.nothing

    __repr__ = __str__
