"""Numbers as every view shows them; the code is below the rules, which word their findings with it."""

from gradscope.units import count, counted, listed, nbytes, seconds

__all__ = ["count", "counted", "listed", "nbytes", "seconds"]
