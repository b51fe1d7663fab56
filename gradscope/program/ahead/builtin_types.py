"""Says what methods of built-in types do, and what calling a class makes."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

import torch
import torch.utils.checkpoint

from gradscope.code.bytecode import MISSING
from gradscope.program.ahead import iteration, tensors
from gradscope.program.ahead import values as v
from gradscope.program.ahead.machine import Machine
from gradscope.program.ahead.models import are_same, argument, computed, contains, in_order
from gradscope.program.ahead.values import Given, Named
from gradscope.program.containers import (
    GENERATOR_TYPES,
    class_name,
    derives,
    is_a,
    is_exactly,
    module_of,
)


def call_builtin(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Call a C function, or a method of a live object that is bound to it."""
    if tensors.is_operator(function):
        return tensors.operate(m, function, given, named)
    owner = function.__self__
    if owner is not None and not is_a(owner, types.ModuleType):
        return call_method(m, owner, function.__name__, given, named)
    return m.unknown(f"a call of {function.__name__}", *given, *named.values())


def call_method(m: Machine, of: Any, name: str, given: Given, named: Named) -> Any:
    """Call a method of a built-in type."""
    if v.is_tensor(of):
        return tensors.method(m, of, name, given, named)
    if is_exactly(of, v.Suspended, *GENERATOR_TYPES):
        return _of_generator(m, of, name, given)
    if type(of) is v.Unknown:
        return m.unknown(f"{name} of {of.why}", of, *given, *named.values())
    if name in _OF_ALL:
        return _OF_ALL[name](m, of, given)
    payload = m.overlay.view(of)
    if v.is_plain(payload):
        given = (tuple(iteration.drain(m, given[0])),) if name == "join" else given
        return computed(m, getattr(payload, name), given, named)
    if is_a(payload, list, deque, dict, set, tuple):
        return _of_container(m, of, payload, name, given, named)
    if is_a(of, type) and name == "fromkeys":
        value = given[1] if len(given) > 1 else None
        return v.OwnDict((v.key_of(key), value) for key in iteration.drain(m, given[0]))
    if is_a(of, type) and name == "from_iterable":
        return iteration.lazily(m, iteration.EACH_OF, given, {})
    if is_a(of, random.Random) and name in ("random", "getrandbits"):
        return v.Unknown(why="a random number")
    if is_a(of, functools._lru_cache_wrapper) and name == "cache_clear":
        m.caches[id(of)] = {}
        m.cleared.add(id(of))
        return None
    if is_a(of, *_FILES):
        return v.Unknown(why="a file")
    return m.unknown(f"{class_name(v.kind_of(of))}.{name}", of, *given, *named.values())


_FILES: Final = (type(sys.__stderr__), type(sys.stdout))


def _iterated(m: Machine, of: Any, given: Given) -> Any:
    is_container = is_a(m.overlay.view(of), *v.CONTAINERS)
    return iteration.over(m, of) if is_container else iteration.iterator(m, of)


_OF_NO_EFFECT: Final = v.words(
    "__exit__ __init__ __init_subclass__ __del__ release add_note __post_init__"
)
_OF_ALL: Final[dict[str, Callable[[Machine, Any, Given], Any]]] = {
    "__getitem__": lambda m, of, given: iteration.plain_item(m, of, given[0]),
    "__setitem__": lambda m, of, given: iteration.set_plain_item(m, of, *given),
    "__get__": lambda m, of, given: of if given[0] is None else m.bind(of, given[0], ""),
    "__next__": lambda m, of, given: m.call(next, (of,), {}),
    "__iter__": _iterated,
    "__len__": lambda m, of, given: iteration.plain_size(m, of),
    "__enter__": lambda m, of, given: of,
    "__setattr__": lambda m, of, given: m.store(of, *given),
    "__getattribute__": lambda m, of, given: m.call(object.__getattribute__, (of, *given), {}),
    "acquire": lambda m, of, given: True,
    "with_traceback": lambda m, of, given: of,
    "__reduce_ex__": lambda m, of, given: v.lost("a pickle"),
    **dict.fromkeys(_OF_NO_EFFECT, lambda m, of, given: None),
}


def _of_generator(m: Machine, of: Any, name: str, given: Given) -> Any:
    generator = iteration.resumed(m, of)
    if name in ("__iter__", "__await__", "__aiter__"):
        return generator
    if name == "__anext__":
        return iteration.next_awaitable(m, generator)
    if name in ("close", "aclose"):
        generator.state = "done"
        return None if name == "close" else iteration.of_values()
    try:
        if name in ("send", "__next__"):
            return iteration.send(m, generator, given[0] if given else None)
    except v.Exhausted as over:
        return m.throw(StopIteration, *(() if over.value is None else (over.value,)))
    return v.lost(f"generator.{name}")


_CHANGING: Final = v.words(
    "append appendleft insert extend extendleft pop popleft clear reverse remove sort "
    "rotate update add discard setdefault __delitem__ __iadd__ __ior__ "
    "difference_update intersection_update symmetric_difference_update"
)


def _of_container(m: Machine, of: Any, payload: Any, name: str, given: Given, named: Named) -> Any:
    if name in ("get", "setdefault", "pop") and is_a(payload, dict):
        return _looked_up(m, of, name, given, named)
    if name in _CHANGING:
        return _changed(m, of, m.overlay.to_write(of), name, given, named)
    if name in ("copy", "__copy__"):
        made = next(own for base, own in v.KINDS if is_a(payload, base))
        found = made(dict.items(payload) if made is v.OwnDict else payload)
        if type(of) is not v.Instance:
            return found
        return v.Instance(v.kind_of(of), found)
    if name in ("keys", "values", "items") and is_a(payload, dict):
        pairs = [(v.value_of(key), value) for key, value in [*dict.items(payload)]]
        if name == "items":
            return v.OwnList(pairs)
        return v.OwnList([pair[name == "values"] for pair in pairs])
    if name == "__contains__":
        return v.known(contains(m, of, given[0]), "in")
    if name in ("union", "difference", "intersection", "issubset", "isdisjoint", "issuperset"):
        rest = [set(map(v.key_of, iteration.drain(m, each))) for each in given]
        found = getattr(set(payload), name)(*rest)
        return v.OwnSet(found) if type(found) is set else found
    if name in ("index", "count") and all(map(v.is_plain, (*payload, *given))):
        return computed(m, getattr([*payload], name), given, named)
    return m.unknown(f"{class_name(v.kind_of(of))}.{name}", of, *given, *named.values())


def _looked_up(m: Machine, of: Any, name: str, given: Given, named: Named) -> Any:
    space, key = m.overlay.view(of), given[0]
    default = given[1] if len(given) > 1 else named.get("default", v.NULL)
    at = v.key_of(key)
    if at not in space and not iteration.is_known_key(m, key):
        found = [*dict.values(space), *([] if default is v.NULL else [default])]
        return iteration.unknown_element(m, found)
    if at in space:
        found = dict.__getitem__(space, at)
        if name == "pop":
            del m.overlay.to_write(of)[at]
        return found
    if name == "setdefault":
        m.overlay.to_write(of)[at] = None if default is v.NULL else default
    elif name == "pop" and default is v.NULL:
        m.throw(KeyError, key)
    return None if default is v.NULL else default


def _changed(m: Machine, of: Any, space: Any, name: str, given: Given, named: Named) -> Any:
    if name in ("update", "__ior__") and is_a(space, dict):
        for each in given:
            dict.update(space, iteration.as_dict(m, each))
        dict.update(space, named)
        return of
    if name in ("extend", "extendleft", "__iadd__"):
        given = (iteration.drain(m, given[0]),)
    elif name.endswith("update"):
        given = tuple(set(map(v.key_of, iteration.drain(m, each))) for each in given)
    elif name == "sort":
        space[:] = in_order(m, [*space], named)
        return None
    elif name == "remove" and not is_a(space, set):
        at = next((at for at, each in enumerate(space) if are_same(m, each, given[0])), None)
        if at is not None:
            del space[at]
            return None
        return m.doubt_of(space, "remove")
    elif is_a(space, set) or is_a(space, dict):
        given = tuple(map(v.key_of, given))
    at = given[0] if given and name in ("pop", "insert", "__delitem__") else 0
    if type(at) is v.Unknown or (is_a(at, slice) and not v.is_plain((at.start, at.stop))):
        return _at_unknown(m, space, name, given)
    found = m.compute(getattr(space, name), *given)
    return v.value_of(found) if is_a(space, set) else found


def _at_unknown(m: Machine, space: Any, name: str, given: Given) -> Any:
    found = [*(dict.values(space) if is_a(space, dict) else space)]
    m.doubt_of(found, "an unknown index")
    if name == "insert":
        space.append(given[1])
        return None
    if name == "pop" and space and is_a(space, list):
        space.pop()
    return iteration.unknown_element(m, found) if name == "pop" else None


# making objects


def make(m: Machine, cls: type, given: Given, named: Named) -> Any:
    """Return what calling a class gives."""
    made = _made_by_torch(m, cls, given, named)
    if made is not MISSING:
        return made
    meta = m.lookup(type(cls), "__call__")
    if type(meta) is FunctionType:
        return m.call(meta, (cls, *given), named)
    new = m.lookup(cls, "__new__")
    new = getattr(new, "__func__", new) if type(new) is staticmethod else new
    if is_exactly(new, FunctionType, v.Function):
        made = m.call(new, (cls, *given), named)
        if type(made) is not v.Instance or made.kind is not cls:
            return made
    else:
        made = _empty(m, cls, given, named)
        if made is None:
            return m.unknown(f"a {class_name(cls)}", *given, *named.values())
    init = m.lookup(cls, "__init__")
    if is_exactly(init, FunctionType, v.Function):
        m.call(init, (made, *given), named)
    elif made.payload is not None and not is_a(made.payload, tuple):
        _fill(m, made, given, named)
    return made


def _empty(m: Machine, cls: type, given: Given, named: Named) -> v.Instance | None:
    """Return an object of a class whose ``__new__`` is written in C; None if unknown."""
    if derives(cls, BaseException):
        return m.exception(cls, *given)
    for base, own in v.KINDS:
        if derives(cls, base):
            return v.Instance(cls, own())
    return v.Instance(cls) if m.lookup(cls, "__new__") is object.__new__ else None


def _fill(m: Machine, made: v.Instance, given: Given, named: Named) -> None:
    if derives(made.kind, collections.defaultdict):
        made.fields["default_factory"] = given[0] if given else None
        given = given[1:]
    elif is_a(made.payload, deque):
        longest = argument(given, named, 1, "maxlen")
        made.payload = v.OwnDeque((), longest if type(longest) is int else None)
        given, named = given[:1], {}
    if given or named:
        name = "update" if is_a(made.payload, dict, set) else "extend"
        _changed(m, made, made.payload, name, given, named)


def _made_by_torch(m: Machine, cls: type, given: Given, named: Named) -> Any:
    module = module_of(cls)
    if derives(cls, types.SimpleNamespace):
        return v.Instance(cls, **named)
    if not (module + ".").startswith("torch."):
        return MISSING
    if cls is torch.Size:
        found = tuple(iteration.drain(m, given[0]))
        return torch.Size(found) if v.is_plain(found) else v.Unknown(why="a size")
    if derives(cls, torch.nn.Parameter):
        data = argument(given, named, 0, "data")
        return v.FutureTensor(v.NO_TAINTS, tensors.twin(data), True)
    if derives(cls, torch.Tensor):
        return v.FutureTensor(v.unsure(m.held(given)))
    if cls is torch.device or cls is torch.Generator:
        return v.Unknown(why="a device")
    if module.startswith("torch.distributions."):
        return v.Instance(cls, made_of=(given, tuple(named.values())))
    if module.startswith(_MADE_PLAINLY):
        return v.Instance(cls)
    return MISSING


_MADE_PLAINLY: Final = (
    *("torch.optim", "torch.amp", "torch.cuda", "torch.utils.data", "torch.profiler"),
    "torch.autograd.profiler",
)


def cached_result(m: Machine, cached: Any, given: Given, named: Mapping[str, Any]) -> Any:
    """Return what an ``lru_cache`` has for these arguments; MISSING if nothing."""
    wanted = [*given, *([_KEYWORDS] if named else []), *itertools.chain(*named.items())]
    inside, is_sure = gc.get_referents(cached), True
    for held in inside:
        if type(held) is not dict or held is cached.__dict__:
            continue
        is_sure = is_sure and len(held) <= _MOST_KEYS
        for key in [*held][:_MOST_KEYS]:
            parts = key if type(key) is tuple else (key,)
            if len(parts) == len(wanted):
                same = [
                    type(one) is object if two is _KEYWORDS else are_same(m, one, two)
                    for one, two in zip(parts, wanted, strict=True)
                ]
                if all(same):
                    return _unwrapped(held[key], key, inside)
                is_sure = is_sure and False in same
    return MISSING if is_sure else v.Unknown(why="a cache")


# Keys of an ``lru_cache`` that are compared, part by part. If a larger one has no such key among
# these, it is not known whether the function runs.
_MOST_KEYS: Final = 1_000
_KEYWORDS: Final = object()
"""Stands for what a key has between arguments and keywords."""


def _unwrapped(value: Any, key: Any, inside: list[Any]) -> Any:
    """Return the result in an entry of a cache: one with a bound has elements of a list in C,
    and lists what they hold as key, result and type.
    """
    if type(value).__name__ != "_lru_list_elem":
        return value
    for at, each in enumerate(inside):
        if each is type(value) and inside[at - 2] is key:
            return inside[at - 1]
    return v.Unknown(why="a cache")
