"""Asks the loops that frames are in which of the user's tensors they will still give."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Collection, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

from gradscope.code import source
from gradscope.code.keys import ALL, Here, LoopAtHand, keys_taken
from gradscope.code.liveness import ANYWHERE, MISSING, iterators_at, loops_at, site_of
from gradscope.detect.foresight.objects import Objects, names_of_parameters
from gradscope.program.containers import Contents
from gradscope.program.iterators import coming, on_stack
from gradscope.program.layouts import derives, is_a
from gradscope.program.sites import place_in
from gradscope.program.standing import standing

_MOST_OBJECTS = 4_000
_MOST_ITEMS = 64
_DEEPEST = 4
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_CONTAINERS = (list, tuple, dict, deque)


class _Ahead(NamedTuple):
    """What one loop will still give: for each tensor, by identity, what leads to it from an
    element.
    """

    tensors: dict[int, set[str]]
    spent: bool
    header: int
    items: list[tuple[str, Any]] | None = None


class Loops:
    """The loops of the frames of one look; it lives no longer than that."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, _Ahead]] = {}

    def of(
        self, frame: FrameType, objects: Objects, tensor: Tensor, names: Collection[str]
    ) -> LoopsOfFrame:
        """Return what the loops around the place of a frame will give of a tensor."""
        if id(frame) not in self._known:
            slots = iterators_at(*standing(frame))
            self._known[id(frame)] = {
                depth: _ahead(on_stack(frame, depth), header) for depth, header in slots.items()
            }
        return LoopsOfFrame(frame, objects, self._known[id(frame)], id(tensor), names)


class LoopsOfFrame:
    """What the loops around the place of a frame will give of one tensor, which has these names."""

    def __init__(
        self,
        frame: FrameType,
        objects: Objects,
        known: dict[int, _Ahead],
        tensor: int,
        names: Collection[str],
    ) -> None:
        self._frame = frame
        self._objects = objects
        self._known = known
        self._tensor = tensor
        self._names = names

    def coming(self, depth: int, name: str) -> Collection[str] | None:
        """Return what leads to the tensor from each element that the loop will give."""
        if depth not in self._known or name not in self._names:
            return None
        return self._known[depth].tensors.get(self._tensor, ())

    def is_spent(self, depth: int) -> bool:
        """Return whether the loop at this depth of the stack has no next iteration."""
        return depth in self._known and self._known[depth].spent

    def header(self, depth: int) -> int:
        """Return the instruction that takes the next element."""
        return self._known[depth].header

    def keys(self, code: CodeType, at: int, level: int, *, is_top: bool) -> Collection[str] | None:
        """Return the parts that a subscript can take from here on; None where that is not known."""
        around = standing(self._frame).code
        own = is_top or (code.co_name in _COMPREHENSIONS and code in around.co_consts)
        found = keys_taken(site_of(code, at), self._here() if own else None, level)
        return {ANYWHERE} if found is ALL else found

    def _here(self) -> Here | None:
        site = place_in(self._frame).site
        loops = source.loops_around(site.file, site.line)
        fors = [loop for loop in loops if isinstance(loop, ast.For)]
        if len(fors) != len(self._known) or len(loops) != loops_at(
            self._frame.f_code, self._frame.f_lasti
        ):
            return None
        depths = dict(zip(fors, sorted(self._known, reverse=True), strict=True))
        around = (
            LoopAtHand(loop, self._known[depths[loop]].items if loop in depths else None)
            for loop in loops
        )
        return Here(site, tuple(around), self._value, self._names_given)

    def _names_given(self, path: str, method: str) -> list[str] | None:
        found = self._objects.find(path)
        is_known = method == "named_parameters" and is_a(found, Module)
        return names_of_parameters(found) if is_known else None

    def _value(self, path: str) -> Any:
        found = self._objects.find(path)
        if found is MISSING:
            raise LookupError
        return found


def _ahead(iterator: Any, header: int) -> _Ahead:
    if iterator is MISSING:
        return _Ahead({}, False, header)
    items, all_known = coming(iterator)
    found: dict[int, set[str]] = {}
    for at, tensor in _tensors_in(items):
        found.setdefault(id(tensor), set()).add(at)
    return _Ahead(found, all_known and not items, header, items if all_known else None)


def _tensors_in(items: list[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in elements, in containers in them, and what leads to each."""
    contents = Contents(_MOST_ITEMS)
    waiting = deque((at, each, 0) for at, each in items)
    for _ in range(_MOST_OBJECTS):
        if not waiting:
            return
        at, each, depth = waiting.popleft()
        if derives(type(each), Tensor):
            yield at, each
        elif depth < _DEEPEST and any(derives(type(each), base) for base in _CONTAINERS):
            held = contents.of(each)
            inside = ((f"{at}[{key!r}]", value) for kind, key, value in held if kind == "item")
            waiting += ((way, value, depth + 1) for way, value in inside)
