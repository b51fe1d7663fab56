"""Finds the optimizers that the program's variables hold, and which of them step with a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from gradscope.code import source
from gradscope.code.places import of_node
from gradscope.code.stepping import What, events_after, events_before
from gradscope.detect.foresight.objects import MISSING, Objects
from gradscope.model import Site
from gradscope.program.layouts import derives, is_user_class
from gradscope.program.sites import place_in
from gradscope.program.variables import local_variables

_MOST_OBJECTS = 2_000
_DEEPEST = 4
_MOST_EVENTS = 200
_WRITTEN = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer by its name, and its parameters by identity."""

    name: str
    parameters: frozenset[int]
    identity: int


class Optimizers:
    """The optimizers in reach of some frames; it holds the frames' variables, so let it go soon."""

    def __init__(self, frames: Sequence[FrameType]) -> None:
        self._frames = frames
        self._objects = [Objects(frame) for frame in frames]
        self.all = _found(frames)
        self.parameters = frozenset(p for each in self.all for p in each.parameters)

    def stepping_with(self, chain: Sequence[Site]) -> tuple[Optimizer, ...]:
        """Return what steps after a backward call: before the next one if any does, else before its
        gradients are reset.
        """
        zeroed: set[int] = set()
        soon: dict[int, Optimizer] = {}
        later: dict[int, Optimizer] = {}
        is_next = True
        for number, event in enumerate(events_after(chain)):
            if number > _MOST_EVENTS:
                break
            if event.what is What.BACKWARD:
                is_next = False
            elif event.what is What.ZERO:
                zeroed |= self._parameters_of(event.target)
            else:
                for optimizer in self._named(event.target, event.among):
                    if not optimizer.parameters <= zeroed:
                        (soon if is_next else later).setdefault(optimizer.identity, optimizer)
                    zeroed |= optimizer.parameters if is_next else set()
        return self._reset_for_it(tuple((soon or later).values()), chain[0])

    def _reset_for_it(self, found: tuple[Optimizer, ...], site: Site) -> tuple[Optimizer, ...]:
        """Of several optimizers, return those whose gradients are reset for this very call."""
        if len(found) < 2:
            return found
        zeroed: set[int] = set()
        for event in events_before(site):
            if event.what is What.BACKWARD:
                zeroed.clear()
            elif event.what is What.ZERO:
                zeroed |= self._parameters_of(event.target)
        own = tuple(each for each in found if each.parameters <= zeroed)
        return own or found

    def _object(self, text: str) -> Any:
        found = (objects.find(text) for objects in self._objects if text)
        return next((each for each in found if each is not MISSING), MISSING)

    def _named(self, target: str, among: tuple[str, ...]) -> list[Optimizer]:
        """Return the optimizers that a step is made of: ``opt.step()``, ``scaler.step(opt)``."""
        for text in (target, *among[:1]):
            found = self._object(text)
            known = [each for each in self.all if each.identity == id(found)]
            if known:
                return known
            if found is MISSING:
                last = text.rpartition(".")[2]
                alike = [each for each in self.all if each.name.rpartition(".")[2] == last]
                if alike:
                    return alike
        one_of_several = self._object(target) is MISSING and len(self.all) == 1
        return self.all if one_of_several and "sched" not in target.lower() else []

    def _parameters_of(self, target: str) -> frozenset[int]:
        found = self._object(target)
        if isinstance(found, torch.nn.Module):
            return frozenset(map(id, torch.nn.Module.parameters(found)))
        return frozenset(p for each in self._named(target, ()) for p in each.parameters)


def _found(frames: Sequence[FrameType]) -> list[Optimizer]:
    """Return the optimizers that variables lead to, those with short names first."""
    found: dict[int, Optimizer] = {}
    seen: set[int] = set()
    waiting: deque[tuple[str, Any, int]] = deque()
    for frame in frames:
        waiting += ((name, value, 0) for name, value in local_variables(frame))
    for frame in frames:
        waiting += ((name, value, 0) for name, value in [*frame.f_globals.items()])
    while waiting and len(seen) < _MOST_OBJECTS:
        name, value, depth = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if derives(type(value), torch.optim.Optimizer):
            found[id(value)] = Optimizer(name, _parameters(value), id(value))
        elif depth < _DEEPEST:
            waiting += ((part, each, depth + 1) for part, each in _parts(name, value))
    return [*found.values()]


def _parameters(optimizer: Any) -> frozenset[int]:
    groups = object.__getattribute__(optimizer, "__dict__").get("param_groups", ())
    return frozenset(id(p) for group in groups for p in group["params"])


def _parts(name: str, value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind in (list, tuple):
        return [(f"{name}[{i}]", each) for i, each in enumerate(value[:32])]
    if kind is dict:
        return [(f"{name}[{_shown(key)}]", each) for key, each in [*value.items()][:64]]
    if is_user_class(kind):
        try:
            space = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return []
        return [(f"{name}.{key}", each) for key, each in [*space.items()][:200]]
    return []


def _shown(key: Any) -> str:
    """Return a key as it is written; of the program's own classes nothing is asked."""
    return repr(key) if type(key) in _WRITTEN else "…"


def chain_from(site: Site, frames: Sequence[FrameType], *, by: Site | None = None) -> list[Site]:
    """Return a call's site and those of the calls that lead to it, innermost first.

    ``by`` is where the code that runs now comes to it, if its function does not run yet.
    """
    places = [place_in(frame).site for frame in frames]
    for depth, place in enumerate(places):
        if (place.file, place.function) == (site.file, site.function):
            return [site, *places[depth + 1 :]]
    name = site.function.rpartition(".")[2]
    for depth, place in enumerate(places):
        calls = source.calls_in(source.function_around(place))
        call = next((c for c in calls if source.called_name(c) == name), None)
        if call is not None:
            here = of_node(call, place.file, place.function)
            return [site, here, *places[depth + 1 :]]
    for depth, place in enumerate(places):
        if by is not None and (place.file, place.function) == (by.file, by.function):
            return [site, by, *places[depth + 1 :]]
    return [site]
