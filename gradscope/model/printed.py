"""How the data prints: the layers that show it register their forms here; lists print likewise."""

from __future__ import annotations

from functools import singledispatch
from typing import ClassVar, TypeVar

from gradscope.units import escaped


@singledispatch
def text_of(value: object) -> str:
    """Return what ``print`` shows: the ``repr`` if no form is registered for the class."""
    return repr(value)


@singledispatch
def rich_forms(value: object) -> dict[str, str]:
    """Return further forms in which a notebook can show the value, by their MIME types."""
    return {}


class Printed:
    """Prints in the form that is registered for its class, and shows itself in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        return escaped(text_of(self), keep="\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), **rich_forms(self)}


T = TypeVar("T")


class Listing(Printed, tuple[T, ...]):
    """A tuple whose printed form is that of its entries, each on lines of its own."""

    __slots__ = ()
    nothing: ClassVar[str] = "nothing"

    __repr__ = Printed.__str__


@text_of.register
def _entries(listing: Listing) -> str:  # type: ignore[type-arg]
    return "\n".join(map(str, listing)) or listing.nothing
