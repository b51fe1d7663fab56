"""What functions, their caches, generators, frames and tracebacks hold, read without running any of them."""

from __future__ import annotations

import functools
import gc
import types
from typing import TYPE_CHECKING, Any

from gradscope.program import namespaces
from gradscope.program.sites import USER, owner_of

if TYPE_CHECKING:
    from gradscope.program.contents import Contents, Held

_MANY_RESULTS = 10_000
_LONGEST_TRACEBACK = 50

GENERATORS: dict[type, tuple[str, str]] = {
    types.GeneratorType: ("gi_frame", "gi_yieldfrom"),
    types.CoroutineType: ("cr_frame", "cr_await"),
    types.AsyncGeneratorType: ("ag_frame", "ag_await"),
}
"""The attributes by which each gives out its frame, and what it waits for."""


def of_function(contents: Contents, function: types.FunctionType, held: list[Held]) -> None:
    """Closure, defaults, attributes, and for the user's own functions the variables of their module."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            held.append(("cell", name, cell.cell_contents))
        except ValueError:  # not bound yet
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    held += [("default", name, value) for name, value in zip(names, defaults, strict=True)]
    held += [("default", name, value) for name, value in (function.__kwdefaults__ or {}).items()]
    contents.attributes(function.__dict__, held)
    if owner_of(code) == USER:
        held.append(("globals", None, function.__globals__))


def of_lru_cache(contents: Contents, cache: Any, held: list[Held]) -> None:
    """The results, and arguments, that a ``functools.lru_cache`` keeps: only the collector gives them out."""
    info = functools._lru_cache_wrapper.cache_info(cache)
    if info.maxsize is not None and info.currsize > _MANY_RESULTS:
        contents.cut = True
        return
    attributes = object.__getattribute__(cache, "__dict__")
    for part in gc.get_referents(cache):
        if type(part) is dict and part is not attributes:
            held += [("cache", None, result) for _, result in contents.items(part, contents.most)]
        elif part is not attributes:
            held.append(("cache", None, part))


def of_generator(_: Contents, generator: Any, held: list[Held]) -> None:
    """A suspended generator, coroutine or asynchronous generator: its frame, and what it waits for."""
    frame, inner = GENERATORS[type(generator)]
    if (suspended := getattr(generator, frame)) is not None:
        held.append(("frame", generator.__name__, suspended))
    held.append(("inside", None, getattr(generator, inner)))


def of_frame(_: Contents, frame: types.FrameType, held: list[Held]) -> None:
    """A frame's variables, and for the user's own code those of its module."""
    if not namespaces.is_module_level(frame):
        held += [("variable", name, value) for name, value in namespaces.local_variables(frame)]
    if owner_of(frame.f_code) == USER:
        held.append(("globals", None, frame.f_globals))


def of_traceback(_: Contents, traceback: types.TracebackType, held: list[Held]) -> None:
    """The frames of a traceback, from the one that caught the exception down to the one that raised it."""
    following: types.TracebackType | None = traceback
    for _number in range(_LONGEST_TRACEBACK):
        if following is None:
            return
        held.append(("frame", following.tb_frame.f_code.co_name, following.tb_frame))
        following = following.tb_next
