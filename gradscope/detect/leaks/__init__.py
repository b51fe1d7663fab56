"""Finds what keeps backward graphs alive from one iteration to the next, and graphs that are built or kept for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.detect.leaks.growth import Growth
from gradscope.detect.leaks.waste import Waste

if TYPE_CHECKING:
    from gradscope.collect.backward import Backward
    from gradscope.detect.observers import Observer

__all__ = ["observers"]


def observers(watch: Backward) -> list[Observer]:
    """The observers that say GS301 to GS305."""
    growth = Growth(watch)
    return [growth, Waste(watch, growth)]
