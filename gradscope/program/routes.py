"""Remembers through which lines of the user's a node was built, from its own line outwards."""

from __future__ import annotations

from types import FrameType

from gradscope.program.sites import (
    ENGINE,
    USER,
    Place,
    caller_of,
    known_codes,
    learn_code,
    place_at,
)

_MOST = 10_000
_DEEPEST = 200  # frames of the user's


class Route:
    """The user's places that were being run, the innermost first; one object per route.

    ``in_call``: a backward call built the node, which then has only its innermost place.
    """

    __slots__ = ("in_call", "places")

    def __init__(self, places: tuple[Place, ...], *, in_call: bool) -> None:
        self.places = places
        self.in_call = in_call


class Routes:
    """All routes seen; ``cut`` once one of them was too deep, or there were too many."""

    def __init__(self) -> None:
        self.cut = False
        self._known: dict[tuple[Place, ...], Route] = {}
        self._in_calls: dict[tuple[Place, ...], Route] = {}

    def of(self, frame: FrameType | None) -> Route:
        """Return the route to a frame.

        It runs for every node: it looks at each frame once, and no further than a module's own.
        """
        codes = known_codes
        places: list[Place] = []
        in_call = False
        while frame is not None:
            code = frame.f_code
            known = codes.get(id(code)) or learn_code(code)
            owner = known.owner
            if known.overrides:
                places.clear()
            elif owner == USER:
                if not (in_call and places):  # an override may stand above the first one
                    offset = frame.f_lasti
                    places.append(known.places.get(offset) or place_at(code, offset))
                if code.co_name == "<module>":
                    break
                if len(places) == _DEEPEST:
                    self.cut = True
                    break
            elif owner == ENGINE:
                in_call = True
                del places[1:]
                if places:
                    break
            frame = frame.f_back or caller_of(frame)
        key = tuple(places)
        routes = self._in_calls if in_call else self._known
        route = routes.get(key)
        if route is None:
            route = Route(key, in_call=in_call)
            if len(routes) < _MOST:
                routes[key] = route
            else:
                self.cut = True
        return route
