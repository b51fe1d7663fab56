"""Takes down what a function reads that another run of it may find changed: flags, counters, caches
and tensors of its modules and variables, and the generators of random numbers.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, NoneType
from typing import Any, TypeAlias

import torch
from torch.nn import Module

from gradscope.program.containers import closure_of, is_user_class
from gradscope.program.sites import USER, owner_of
from gradscope.program.tensors import checksum, is_parameter, memory_of, version_of

Reads: TypeAlias = Mapping[str, object]
"""By the name in the program a number, or what stands for an object that is not kept."""

_PLAIN = (bool, int, float, str, NoneType)
_FILLED = (dict, list, set, deque)
_OWN = vars(Module()).keys() - {"training"}
_MOST, _MOST_ITEMS = 2_000, 100


def reads_of(function: Any) -> Reads:
    """Return what a function reads, and those of the user's that it calls, by name. Nothing of the
    program's is run, and no object of it is kept.
    """
    found: dict[str, object] = {}
    met = set[int]()
    waiting = deque([("self", function)])
    while waiting and len(found) < _MOST:
        path, value = waiting.popleft()
        kind = type(value)
        if kind in _PLAIN:
            found[path] = hash(value)
        elif issubclass(kind, torch.Tensor):
            found[path] = id(value), version_of(value), is_parameter(value)
        elif id(value) not in met:
            met.add(id(value))
            if kind in _FILLED:
                found[path] = len(value)
            waiting.extend(_inside(path, value, kind))
    return found


def _inside(path: str, value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    if kind is FunctionType:
        yield from closure_of(value)
        names, known = value.__code__.co_names, value.__globals__
        if owner_of(value.__code__) == USER:
            yield from ((name, known[name]) for name in names if name in known)
    elif kind is MethodType:
        yield from ((path, value.__self__), (path, value.__func__))
    elif kind is functools.partial:
        yield path, value.func
    elif kind is list or kind is tuple:
        yield from ((f"{path}[{i}]", each) for i, each in enumerate(value[:_MOST_ITEMS]))
    elif issubclass(kind, Module) or (is_user_class(kind) and kind.__dictoffset__):
        own = object.__getattribute__(value, "__dict__")
        parts = [{name: each for name, each in own.items() if name not in _OWN}]
        if issubclass(kind, Module):
            parts += (own[name] for name in ("_parameters", "_buffers", "_modules"))
            yield path, kind.forward
        yield from ((f"{path}.{name}", each) for part in parts for name, each in part.items())


def changed(then: Reads, now: Reads) -> tuple[str, ...]:
    """Return the names of what has changed: the mode of the outermost module, numbers and caches,
    then tensors, and parameters at last.
    """

    def rank(name: str) -> int:
        value = now.get(name, then.get(name))
        return 2 + value[2] if type(value) is tuple else not name.endswith(".training")

    names = [name for name in {**then, **now} if then.get(name, then) != now.get(name, now)]
    modes = sorted((name for name in names if not rank(name)), key=len)
    return (*modes[:1], *sorted((name for name in names if rank(name)), key=rank))


def parameters(reads: Reads) -> Reads:
    """Return those of what was read that are parameters."""
    return {name: each for name, each in reads.items() if type(each) is tuple and each[2]}


def generators() -> dict[str, int]:
    """Return by module what stands for the state of each global generator of random numbers on the
    CPU.
    """
    state = torch.default_generator.get_state()  # kept alive while its memory is read
    memory = memory_of(state)
    found = {"torch": 0 if memory is None else checksum(memory), "random": hash(random.getstate())}
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and type(drawn := numpy.get_state()) is tuple:
        found["numpy.random"] = hash((drawn[1].tobytes(), *drawn[2:]))
    return found
