"""Draws."""

from typing import Any

from gradscope.render.pictures.draw import Drawing


def draw_way(ways: Any, asked: Any, file: Any = None) -> Drawing:
    """."""
    raise NotImplementedError
