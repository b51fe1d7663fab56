"""Finds the user's source places of a call, past the frames of torch, gradscope and Python, and
tells calls that a library makes in its own loop from those that the user asks for.
"""

from __future__ import annotations

import os
import site as site_packages
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any

import torch

from gradscope.code.bytecode import Loop, flow_of
from gradscope.code.source import cell_of, of_instruction
from gradscope.model import Site
from gradscope.program.variables import local_variables
from gradscope.torch_private import CALL, carried

OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_PATHS = sysconfig.get_paths()
_STANDARD = tuple({os.path.join(_PATHS[name], "") for name in ("stdlib", "platstdlib")})
_SITE_PACKAGES = (*site_packages.getsitepackages(), site_packages.getusersitepackages())
_INSTALLED = tuple(
    {os.path.join(path, "") for path in (_PATHS["purelib"], _PATHS["platlib"], *_SITE_PACKAGES)}
)
_PACKAGES = os.path.join(os.sep, "site-packages", "")
"""In the path of what is installed in another environment, which a ``.pth`` file adds."""
_MACHINERY = ("<frozen", "<eval_with_key", "<attrs", "<torch", "<__array_function")
"""Generated code. People write what is in ``<stdin>``, ``<string>`` and ``<ipython-…>``."""

_STARTERS = ("gradscope", "gradscope-script.py", os.path.join("gradscope.exe", "__main__.py"))
_CONSOLE_SCRIPTS = tuple(os.sep + name for name in _STARTERS)
"""The ends of the paths of the file that an installer writes to start the CLI."""
_SCRIPTS = _PATHS["scripts"]
"""Where an installer writes what starts ``pytest`` or ``torchrun``; they have no ending."""

# Whose code it is: the user's, an installed library's, or that of torch, gradscope or Python
# (HIDDEN).
#
# COMPILED is what torch.compile made of the user's code: most of its instructions are nowhere in
# the source. ENGINE is the one frame of gradscope between a backward call and the engine.
USER, COMPILED, LIBRARY, HIDDEN, ENGINE = 2, 3, 1, 0, -1

_OVERRIDES = ("__torch_function__", "__torch_dispatch__")
"""The methods that torch runs instead of an operation.

What runs in them runs on behalf of the line that asked for the operation. So that line is reported,
and no line of the overrides that the operation goes through.
"""

ENTRANCE = " (as importlib._bootstrap)"
"""The end of the file name of the ENGINE frame."""

_INDUCTOR = f"{os.sep}torchinductor_"
"""In the path of the files that torch.compile writes."""
_COMPILED = ("__compiled_fn", "__resume_at_")
"""The beginnings of names that only code from torch.compile calls."""


class Place:
    """An instruction in the user's code. There is one object per instruction, so identity is
    equality.
    """

    __slots__ = ("_site", "code", "last_sequence_nr", "offset")

    def __init__(self, code: CodeType, offset: int) -> None:
        self.code = code
        self.offset = offset
        self.last_sequence_nr = -1
        """Sequence number of the last node built here: if it has moved on, the line ran again."""
        self._site: Site | None = None

    @property
    def site(self) -> Site:
        """The source location, found when it is first asked for."""
        if self._site is None:
            site = of_instruction(self.code, self.offset)
            known = known_codes.get(id(self.code))
            self._site = site if known is None else replace(site, cell=known.cell)
        return self._site


class KnownCode:
    """What is known of a code object."""

    __slots__ = ("cell", "code", "overrides", "owner", "places")

    def __init__(self, code: CodeType) -> None:
        self.code = code  # keeps the id taken
        self.owner = classify(code.co_filename)
        if self.owner == USER and any(name.startswith(_COMPILED) for name in code.co_names):
            self.owner = COMPILED
        self.overrides = self.owner > HIDDEN and code.co_name in _OVERRIDES
        self.places: dict[int, Place] = {}
        self.cell = cell_of(code.co_filename)  # now: the same text may run again in another one


known_codes: dict[int, KnownCode] = {}
"""By id, because hashing a code object hashes its constants. The pack hook reads it directly."""
# Code objects that are known; if there are more, all are forgotten and classified again. Training a
# small transformer uses 171, but a notebook's cells and exec() make new ones without end.
_LARGEST_CACHE = 20_000


def learn_code(code: CodeType) -> KnownCode:
    """Add a code object to those known."""
    if len(known_codes) > _LARGEST_CACHE:
        known_codes.clear()
    known = known_codes[id(code)] = KnownCode(code)
    return known


def forget_codes() -> None:
    """Release all code objects: the program may wait for those of torch.compile to be destroyed."""
    known_codes.clear()


def owner_of(code: CodeType) -> int:
    """Return whose code this is: USER, COMPILED, LIBRARY, HIDDEN or ENGINE."""
    return (known_codes.get(id(code)) or learn_code(code)).owner


def is_override(code: CodeType) -> bool:
    """Return whether torch runs this in the place of an operation."""
    return (known_codes.get(id(code)) or learn_code(code)).overrides


def classify(filename: str) -> int:
    """Return whose code a source file is: USER, LIBRARY, HIDDEN or ENGINE."""
    if filename.startswith("<"):
        return HIDDEN if filename.startswith(_MACHINERY) else USER
    path = os.path.abspath(filename)
    if path.endswith(_CONSOLE_SCRIPTS):
        return HIDDEN
    if os.path.splitext(path)[1] == "" and os.path.dirname(path) == _SCRIPTS:
        return LIBRARY
    if path.startswith((OWN, _TORCH)):
        return ENGINE if path.endswith(ENTRANCE) else HIDDEN
    # Before the standard library, in whose folder ``site-packages`` lies.
    if path.startswith(_INSTALLED) or _PACKAGES in path:
        return LIBRARY
    return HIDDEN if path.startswith(_STANDARD) or _INDUCTOR in path else USER


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called a frame; None at the end of the stack.

    If a thread of the engine runs a backward call for another thread, its stack continues at the
    line that made the call: on a GPU, ``loss.backward()`` is the caller of each hook. The engine
    thread's own stack may be empty; then ``frame`` is None.
    """
    if frame is not None and frame.f_back is not None:
        return frame.f_back
    call = around = carried(CALL)
    while around is not None:
        first = around.outermost or around
        around = first.parent
        if _lowest(first.frame) is frame:  # made in this thread, so the call around it comes next
            call = around
            break
    return None if call is None else call.frame


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = caller_of(frame)


def _lowest(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code from ``frame`` up, or else of a library's, that
    no override of an operation stands above.
    """
    user = library = overriding = None
    while frame is not None:
        code = frame.f_code
        known = known_codes.get(id(code)) or learn_code(code)  # no calls: it goes far up each time
        owner = known.owner
        if known.overrides:
            overriding = overriding or user or library or frame
            user = library = None
        elif user is None and (
            owner == USER
            or (owner == COMPILED and place_in(frame).site.end_column > 0)  # the user wrote it
        ):
            user = frame
        elif owner == LIBRARY and library is None:
            library = frame
        if user is not None and (owner == ENGINE or code.co_name == "<module>"):
            break
        frame = frame.f_back or caller_of(frame)
    return user or library or overriding


def library_way(frame: FrameType | None) -> tuple[Place, ...]:
    """Return the places in libraries by which the user's line has come to ``frame``, the innermost
    last.
    """
    way = map(place_in, _libraries_below(user_frame(frame), frame))
    return tuple(way)[::-1]


def override_below(frame: FrameType | None, user: FrameType | None) -> FrameType | None:
    """Return the first override that an operation asked for in ``user`` goes through."""
    overrides = [each for each in _below(user, frame) if is_override(each.f_code)]
    return overrides[-1] if overrides else None


def _below(user: FrameType | None, frame: FrameType | None) -> Iterator[FrameType]:
    """Return the frames from one up to the user's that has come to it, without that."""
    return takewhile(lambda each: each is not user, frames_from(frame))


def _libraries_below(user: FrameType | None, frame: FrameType | None) -> list[FrameType]:
    """Return the frames of libraries among these, innermost first."""
    return [each for each in _below(user, frame) if owner_of(each.f_code) == LIBRARY]


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return all frames of the user's own code at or above ``frame``, innermost first, but for
    those of overrides and of what these call.
    """
    frames: list[FrameType] = []
    beneath = 0  # above these frames an override may still stand
    for each in frames_from(frame):
        owner = owner_of(each.f_code)
        if is_override(each.f_code):
            del frames[beneath:]
        elif owner == USER:
            frames.append(each)
        elif owner == ENGINE:
            beneath = len(frames)
    return frames or ([frame] if frame is not None and owner_of(frame.f_code) == USER else [])


def place_in(frame: FrameType) -> Place:
    """Return the place at which ``frame`` itself stands."""
    return place_at(frame.f_code, frame.f_lasti)


def place_at(code: CodeType, offset: int) -> Place:
    """Return the place of an instruction."""
    known = (known_codes.get(id(code)) or learn_code(code)).places
    place = known.get(offset)
    if place is None:
        place = known[offset] = Place(code, offset)
    return place


def place_of(frame: FrameType | None) -> Place | None:
    """Return the user's place in ``frame`` or its callers."""
    found = user_frame(frame)
    return None if found is None else place_in(found)


def site_of(place: Place | None) -> Site | None:
    """Return the source place; None stays None."""
    return None if place is None else place.site


# Routes that are kept, one for each chain of calls that saved something. A further one is made anew
# each time, and is equal to no other: what depends on routes is then not reported (``cut``).
_MOST_ROUTES = 10_000
# Frames of the user's code in a route, from the innermost: a recursion may have thousands.
_DEEPEST = 200


class Route:
    """The lines of the user's code that were running when a node was built, innermost first.

    There is one object per route. ``in_call``: a backward call built the node; the route then has
    only its innermost line.
    """

    __slots__ = ("in_call", "places")

    def __init__(self, places: tuple[Place, ...], *, in_call: bool) -> None:
        self.places = places
        self.in_call = in_call


class Routes:
    """All routes seen; ``cut`` once one of them was too deep, or there were too many."""

    def __init__(self) -> None:
        self.cut = False
        self._known: dict[tuple[tuple[Place, ...], bool], Route] = {}

    def of(self, frame: FrameType | None) -> Route:
        """Return the route to a frame.

        This runs for every node, so it visits each frame once, and stops at the frame of a module.
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
        key = tuple(places), in_call
        route = self._known.get(key)
        if route is None:
            route = Route(key[0], in_call=in_call)
            if len(self._known) < _MOST_ROUTES:
                self._known[key] = route
            else:
                self.cut = True
        return route


def is_driven(user: FrameType | None, given: Sequence[Any] = ()) -> bool:
    """Return whether the library that the line of ``user`` called runs a loop of its own, as a
    trainer does in ``trainer.fit(model)``.

    A library that was given one of ``given``, the loss, works on the user's behalf, loop or not:
    ``accelerator.backward(loss)``.
    """
    between = [] if user is None else _libraries_below(user, sys._getframe(1))
    if not any(map(_loops_at, between)):
        return False
    return {id(value) for value in _arguments(between[-1])}.isdisjoint(map(id, given))


def _arguments(frame: FrameType) -> Iterator[Any]:
    """Yield what a function was given, and the elements of lists and dicts of arguments."""
    code = frame.f_code
    packed = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + packed]
    for name, value in local_variables(frame):
        if name in names:
            yield value
            yield from (value if type(value) is tuple else ())
            yield from (value.values() if type(value) is dict else ())


def _loops_at(frame: FrameType) -> tuple[Loop, ...]:
    flow = flow_of(frame.f_code)
    return flow.loops_around(flow.index(frame.f_lasti))
