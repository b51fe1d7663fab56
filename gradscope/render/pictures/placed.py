"""A picture whose boxes, links and frames have places."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.render.pictures.picture import Picture

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rect:
    """Left, top, width and height in points; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, dx: float, dy: float) -> Rect:
        """Return the same rectangle ``dx`` to the right and ``dy`` down."""
        return Rect(self.x + dx, self.y + dy, self.width, self.height)


@dataclass(frozen=True, slots=True)
class Placed:
    """The rectangles of boxes and of frames, by the number of their group, and the routes of links.

    A route is the points of a chain of Bezier curves: one, then three for each curve.
    """

    picture: Picture
    boxes: tuple[Rect, ...]
    routes: tuple[tuple[Point, ...], ...]
    frames: dict[int, Rect]
    width: float
    height: float
    engine: str
    notes: tuple[str, ...] = ()
