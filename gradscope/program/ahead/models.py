"""Says what Python's operators give as far as their operands are known, and lists what functions do
that are not entered: Python's own in C, and a few besides.
"""

from __future__ import annotations

import builtins
import collections
import concurrent.futures
import contextlib
import copy
import functools
import gc
import heapq
import importlib.machinery
import importlib.util
import inspect
import itertools
import math
import operator
import os
import random
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.utils.checkpoint
from torch.nn import Module

from gradscope.code.bytecode import MISSING
from gradscope.program.ahead import iteration, tensors
from gradscope.program.ahead import values as v
from gradscope.program.ahead.machine import MODELS, Machine, Model
from gradscope.program.ahead.values import Given, Named
from gradscope.program.containers import class_namespace, derives, is_a, is_exactly
from gradscope.torch_private import ASKED_QUIETLY

BUILTINS: Final[dict[str, Any]] = vars(builtins)


def model(*functions: Any) -> Callable[[Model], Model]:
    """Return what adds a model of these functions."""

    def add(model: Model) -> Model:
        for function in functions:
            MODELS[id(function)] = function, model
        return model

    return add


def argument(given: Given, named: Named, at: int, name: str, default: Any = None) -> Any:
    """Return an argument that is given by its place or its name."""
    return given[at] if at < len(given) else named.get(name, default)


# operators


def computed(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Return what a function gives of plain values; what else it is given leads nowhere."""
    lists = [iteration.elements_of(m, each) for each in given if is_exactly(each, list, v.OwnList)]
    others = [each for each in given if not is_exactly(each, list, v.OwnList)]
    if not v.is_plain((*others, *named.values(), *map(tuple, lists))):
        return v.Unknown(v.unsure(m.held(given)), getattr(function, "__name__", ""))
    if any(map(is_large, others)):
        return v.Unknown(why="a large number")
    return m.compute(function, *given, **named)


def is_large(value: Any) -> bool:
    """Return whether to compute with a value may take long."""
    is_long = is_exactly(value, str, bytes, tuple) and len(value) > 10_000
    return is_long or (type(value) is int and abs(value) > 2**64)


def binary(m: Machine, name: str, left: Any, right: Any, *, in_place: bool) -> Any:
    """Return what an operator gives of two values."""
    word = name.strip("_")
    own = [m.method_of_user(left, f"__{prefix}{word}__") for prefix in ("i", "")]
    if v.is_tensor(left) or (v.is_tensor(right) and own == [MISSING, MISSING]):
        if in_place and v.is_tensor(left):
            return tensors.in_place(m, left, (right,), {})
        return tensors.operate(m, getattr(operator, name), (left, right), {})
    if in_place and is_a(left, list, dict) and name in ("add", "or_"):
        m.method(left, f"__i{word}__", right)
        return left
    for owner, other, prefix in (
        *([(left, right, "i")] if in_place else []),
        (left, right, ""),
        (right, left, "r"),
    ):
        found = m.method_of_user(owner, f"__{prefix}{word}__")
        if found is not MISSING:
            return m.call(found, (owner, other), {})
    if is_a(left, *v.CONTAINERS) and is_a(right, *v.CONTAINERS):
        return _of_containers(m, name, left, right)
    if is_a(left, list, tuple) and name == "mul" and type(right) is int:
        found = iteration.elements_of(m, left) * min(right, 10_000)
        return tuple(found) if is_a(left, tuple) else v.OwnList(found)
    kinds = (type, types.UnionType, type(None))
    if name == "or_" and is_exactly(left, *kinds) and is_exactly(right, *kinds):
        return m.compute(operator.or_, left, right)
    if v.is_plain(left) and v.is_plain(right):
        return computed(m, getattr(operator, name), (left, right), {})
    given = (left, right)
    if type(left) is v.Unknown or type(right) is v.Unknown:
        taints = m.held(given)
        return v.Unknown(v.unsure(taints), "arithmetic") if not taints else m.unknown(name, *given)
    return m.unknown(f"the operator {word}", *given)


def _of_containers(m: Machine, name: str, left: Any, right: Any) -> Any:
    if is_a(left, dict) and name == "or_":
        return v.OwnDict({**iteration.as_dict(m, left), **iteration.as_dict(m, right)})
    first, second = iteration.elements_of(m, left), iteration.elements_of(m, right)
    if name == "add":
        return (tuple if is_a(left, tuple) else v.OwnList)([*first, *second])
    if name in ("or_", "and_", "sub", "xor"):  # of sets, or of a dict's keys
        function = getattr(operator, name)
        return v.OwnSet(function(set(map(v.key_of, first)), set(map(v.key_of, second))))
    return m.unknown(name, left, right)


def unary(m: Machine, name: str, value: Any) -> Any:
    """Return what ``-``, ``+`` or ``~`` gives."""
    if v.is_tensor(value):
        return tensors.operate(m, getattr(operator, name), (value,), {})
    found = m.method_of_user(value, f"__{name}__")
    if found is not MISSING:
        return m.call(found, (value,), {})
    return computed(m, getattr(operator, name), (value,), {})


_REFLECTED: Final = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def compare(m: Machine, function: Any, left: Any, right: Any) -> Any:
    """Return what a comparison gives."""
    if v.is_tensor(left) or v.is_tensor(right):
        return tensors.operate(m, function, (left, right), {})
    if type(left) is v.Unknown or type(right) is v.Unknown:
        return v.Unknown(why="a comparison")
    name = function.__name__
    plain = _as_plain(m, left), _as_plain(m, right)
    if v.is_plain(plain):
        return computed(m, function, plain, {})
    for of, other, method in ((left, right, name), (right, left, _REFLECTED.get(name, name))):
        found = m.method_of_user(of, f"__{method}__")
        if found is not MISSING:
            given = m.call(found, (of, other), {})
            if given is not NotImplemented:
                return given
    if function is operator.ne:
        same = m.known_truth(compare(m, operator.eq, left, right))
        return v.Unknown(why="a comparison") if same is None else not same
    views = m.overlay.view(left), m.overlay.view(right)
    if any(all(is_a(each, kind) for each in views) for kind in (list, tuple)):
        first, second = iteration.elements_of(m, left), iteration.elements_of(m, right)
        for one, other in zip(first, second, strict=False):
            if not (same := are_same(m, one, other)):
                is_known = same is not None and function is operator.eq
                return False if is_known else compare(m, function, one, other)
        return function(len(first), len(second))
    if function is operator.eq and all(is_a(each, dict) for each in views):
        sizes = [len(each) for each in views]
        if sizes[0] != sizes[1] or not any(sizes):
            return sizes[0] == sizes[1]
    known = [is_a(e, type) or iteration.is_known_key(m, e) for e in (left, right)]
    if function is operator.eq and all(known):
        return left is right
    return v.Unknown(why="a comparison")


def _as_plain(m: Machine, value: Any) -> Any:
    """Return the text or number that a value is compared as, such as an enumeration's member."""
    plain: Any = ((str, str.__str__), (int, int.__int__), (float, float.__float__))
    for base, plainly in plain:
        if is_a(value, base):
            compares = [m.lookup(type(value), name) for name in v.words("__eq__ __ne__ __lt__")]
            own = [class_namespace(base)[name] for name in v.words("__eq__ __ne__ __lt__")]
            return plainly(value) if all(map(operator.is_, compares, own)) else value
    return value


def are_same(m: Machine, one: Any, value: Any) -> bool | None:
    """Return whether a container takes two values for the same; None if unknown."""
    if one is value or iteration.compares_by_identity(m, value):
        return one is value
    return m.known_truth(compare(m, operator.eq, one, value))


def contains(m: Machine, of: Any, value: Any) -> bool | None:
    """Return whether a value is in a container; None if unknown."""
    if type(of) is v.Unknown or type(value) is v.Unknown:
        return None
    found = m.method_of_user(of, "__contains__")
    if found is not MISSING:
        return m.known_truth(m.call(found, (of, value), {}))
    payload = m.overlay.view(of)
    if is_a(payload, dict, set, frozenset):
        at = v.key_of(value)
        return True if at in payload else False if iteration.is_known_key(m, value) else None
    if is_a(payload, str, bytes, range):
        return bool(m.compute(operator.contains, payload, value)) if v.is_plain(value) else None
    if not is_a(payload, *v.CONTAINERS):
        return None
    found = [are_same(m, each, value) for each in iteration.elements_of(m, of)]
    return any(found) or (None if None in found else False)


# Python's own functions


model(isinstance)(lambda m, f, given, named: m.is_instance(*given))
model(torch.is_tensor)(lambda m, f, given, named: m.is_instance(given[0], torch.Tensor))


@model(issubclass)
def _issubclass(m: Machine, function: Any, given: Given, named: Named) -> Any:
    cls, bases = given
    each = bases if type(bases) is tuple else (bases,)
    if not (is_a(cls, type) and all(is_a(base, type) for base in each)):
        return v.Unknown(why="issubclass")
    return v.any_of([m.is_subclass(cls, base) for base in each])


model(len)(lambda m, f, given, named: v.known(iteration.size_of(m, given[0]), "len"))


@model(range)
def _range(m: Machine, function: Any, given: Given, named: Named) -> Any:
    return computed(m, range, given, named) if v.is_plain(given) else v.Unknown(why="an index")


model(*iteration.ITERATORS)(iteration.lazily)


@model(reversed)
def _reversed(m: Machine, function: Any, given: Given, named: Named) -> Any:
    found = m.method_of_user(given[0], "__reversed__")
    if found is not MISSING:
        return iteration.iterator(m, m.call(found, given, {}))
    return iteration.of_values(*reversed(iteration.drain(m, given[0])))


model(sorted)(
    lambda m, f, given, named: v.OwnList(in_order(m, iteration.drain(m, given[0]), named))
)


class _Ordered:
    """A value of the program's among those that Python's own functions put in order."""

    def __init__(self, m: Machine, value: Any) -> None:
        self._machine, self.value = m, value

    def __lt__(self, other: _Ordered) -> bool:
        m = self._machine
        found = m.known_truth(compare(m, operator.lt, self.value, other.value))
        if found is None:
            raise v.Unordered
        return found


def _picked(m: Machine, function: Any, found: list[Any], named: Named) -> Any:
    """Return what a function gives that puts places in order by the values there."""
    key = named.get("key")
    keys = found if key is None else [m.call(key, (each,), {}) for each in found]
    if not all(map(v.is_plain, keys)):
        keys = [_Ordered(m, each) for each in keys]
    return m.compute(function, range(len(found)), key=keys.__getitem__)


def in_order(m: Machine, found: list[Any], named: Named) -> list[Any]:
    """Return values as ``sorted`` would order them."""
    is_down = bool(m.known_truth(named.get("reverse", False)))
    try:
        order = _picked(m, functools.partial(sorted, reverse=is_down), found, named)
    except v.Unordered:
        m.doubt_of(found, "an unknown order")
        return found
    return [found[at] for at in order]


@model(sum)
def _sum(m: Machine, function: Any, given: Given, named: Named) -> Any:
    start = argument(given, named, 1, "start", 0)
    return _total(m, given[0], operator.add, start)


def _total(m: Machine, each: Any, function: Any, *first: Any) -> Any:
    values = iteration.chained(m, first, each)
    total = iteration.drain(m, iteration.lazily(m, itertools.accumulate, (values, function), {}))
    return total[-1] if total else m.throw(TypeError, "reduce() of an empty iterable")


model(functools.reduce)(lambda m, f, given, named: _total(m, given[1], given[0], *given[2:]))


@model(min, max)
def _extreme(m: Machine, function: Any, given: Given, named: Named) -> Any:
    found = list(given) if len(given) > 1 else iteration.drain(m, given[0])
    if not found and "default" in named:
        return named["default"]
    try:
        return found[_picked(m, function, found, named)]
    except v.Unordered:
        return iteration.unknown_element(m, found)


@model(any, all)
def _quantifier(m: Machine, function: Any, given: Given, named: Named) -> Any:
    each, stops_at = iteration.iterator(m, given[0]), function is any
    is_known = True
    while True:
        try:
            found = m.known_truth(iteration.advance(m, each))
        except v.Exhausted:
            return not stops_at if is_known else v.Unknown(why="any or all")
        if found is stops_at:
            return stops_at
        is_known = is_known and found is not None


# What calls a function until that gives a certain value cannot be iterated over as it is.
model(iter, aiter)(lambda m, f, given, named: iteration.iterator(m, given[0]))


@model(anext)
def _anext(m: Machine, function: Any, given: Given, named: Named) -> Any:
    has_default = len(given) > 1
    return m.unknown("anext", *given) if has_default else m.method(given[0], "__anext__")


@model(next)
def _next(m: Machine, function: Any, given: Given, named: Named) -> Any:
    try:
        return iteration.advance(m, given[0])
    except v.Exhausted as over:
        if len(given) > 1:
            return given[1]
        return m.throw(StopIteration, *(() if over.value is None else (over.value,)))


@model(getattr)
def _getattr(m: Machine, function: Any, given: Given, named: Named) -> Any:
    if type(given[1]) is not str:
        return m.unknown("getattr", given[0])
    try:
        return m.attribute(*given)
    except v.Raised as raised:
        if len(given) > 2 and m.is_instance(raised.value, AttributeError) is True:
            return given[2]
        raise


@model(setattr)
def _setattr(m: Machine, function: Any, given: Given, named: Named) -> Any:
    if type(given[1]) is not str:
        m.doubt = m.doubt or "setattr"
        return None
    return m.set_attribute(*given)


model(delattr)(lambda m, f, given, named: m.set_attribute(given[0], given[1], MISSING))


@model(hasattr)
def _hasattr(m: Machine, function: Any, given: Given, named: Named) -> Any:
    if type(given[0]) is v.Unknown or type(given[1]) is not str:
        return v.Unknown(why="hasattr")
    try:
        return m.find(*given) is not MISSING
    except v.Raised:
        return False


@model(callable)
def _callable(m: Machine, function: Any, given: Given, named: Named) -> Any:
    if type(given[0]) is v.Unknown:
        return v.Unknown(why="callable")
    return m.lookup(v.kind_of(given[0]), "__call__") is not MISSING


@model(type)
def _type(m: Machine, function: Any, given: Given, named: Named) -> Any:
    if len(given) > 1:
        return v.lost("a class made ahead")
    return v.Unknown(why="type") if type(given[0]) is v.Unknown else v.kind_of(given[0])


@model(super)
def _super(m: Machine, function: Any, given: Given, named: Named) -> Any:
    if given:
        return v.Super(*given)
    frame = m.frames[-1]
    owner = m.overlay.value_in(frame.variables[0])
    slots = frame.flow.slots
    if "__class__" not in slots:
        return v.lost("super")
    return v.Super(m.overlay.cell(frame.variables[slots.index("__class__")]), owner)


model(vars)(
    lambda m, f, given, named: m.attribute(given[0], "__dict__") if given else v.lost("vars")
)
model(locals, globals, eval, exec, compile, __import__, breakpoint, open)(
    lambda m, f, given, named: v.lost("a function that is not followed")
)


model(
    *(print, torch.manual_seed, time.sleep, random.seed, *ASKED_QUIETLY),
    *(warnings.warn, gc.collect, object.__init__, gc.disable, gc.enable),
    *(concurrent.futures.Executor.shutdown, concurrent.futures.ThreadPoolExecutor.shutdown),
    threading.Thread.join,
)(lambda m, f, given, named: None)


@model(importlib.util.find_spec)
def _find_spec(m: Machine, function: Any, given: Given, named: Named) -> Any:
    name = given[0]
    if type(name) is not str or "." in name or len(sys.path_hooks) > 2:
        return v.Unknown(why="a module")
    own = vars(sys.modules[name]).get("__spec__") if name in sys.modules else None
    return importlib.machinery.PathFinder.find_spec(name) if own is None else own


model(threading.current_thread, threading.main_thread)(lambda m, f, given, named: f())


@model(inspect.signature, inspect.getfullargspec)
def _signature(m: Machine, function: Any, given: Given, named: Named) -> Any:
    follows = function is inspect.signature
    is_bound = type(given[0]) is types.MethodType
    asked = given[0].__func__ if is_bound else given[0]
    while follows and (wrapped := m.held_fields(asked).get("__wrapped__")) is not None:
        asked = wrapped
    if not is_exactly(asked, types.FunctionType, v.Function):
        return v.Unknown(why="a signature")
    names, star, stars = inspect.getargs(asked.__code__)
    if not follows:
        rest = (v.Unknown(why="a signature") for _ in range(4))
        return v.Instance(inspect.FullArgSpec, (v.OwnList(names), star, stars, *rest))
    every = [*names[is_bound:], *filter(None, (star, stars))]
    parameters = v.OwnDict((name, v.Unknown(why="a parameter")) for name in every)
    return v.Instance(types.SimpleNamespace, parameters=parameters)


model(id)(lambda m, f, given, named: id(given[0]))
model(input, dir, sys.getsizeof)(lambda m, f, given, named: v.Unknown(why="a text or number"))


@model(int, float, bool, str, complex, bytes, abs, round)
def _converted(m: Machine, function: Any, given: Given, named: Named) -> Any:
    if not given:
        return function()
    value = given[0]
    if function is bool:
        return v.known(m.known_truth(value), "bool")
    if v.is_tensor(value) and is_exactly(function, types.BuiltinFunctionType):
        return tensors.operate(m, getattr(torch, function.__name__), (value,), {})
    if v.is_tensor(value):
        return v.Unknown(why="a number or text of a tensor")
    if function is str and is_a(value, type):
        is_plain = m.lookup(type(value), "__repr__") is class_namespace(type)["__repr__"]
        return type.__repr__(value) if is_plain else v.Unknown(why="a text")
    if function is str and derives(v.kind_of(value), BaseException) and is_a(value, v.Instance):
        said = value.fields.get("args", ())
        return said[0] if len(said) == 1 and type(said[0]) is str else v.Unknown(why="str")
    return computed(m, function, given, named)


model(
    *(repr, ascii, hash, format, bin, hex, oct, chr, ord, pow, divmod),
    *(each for each in vars(math).values() if is_exactly(each, types.BuiltinFunctionType)),
)(computed)


# containers


@model(list, tuple, set, frozenset)
def _container(m: Machine, function: Any, given: Given, named: Named) -> Any:
    found = iteration.drain(m, given[0]) if given else []
    if function is tuple:
        return tuple(found)
    return v.OwnList(found) if function is list else v.OwnSet(map(v.key_of, found))


@model(vars(collections)["_count_elements"])
def _counted(m: Machine, function: Any, given: Given, named: Named) -> None:
    for each in iteration.drain(m, given[1]):
        before = m.method(given[0], "get", each, 0)
        iteration.set_item(m, given[0], each, m.call(operator.add, (before, 1), {}))


@model(dict)
def _dict(m: Machine, function: Any, given: Given, named: Named) -> Any:
    return v.OwnDict({**(iteration.as_dict(m, given[0]) if given else {}), **named})


model(slice, functools.partial, types.MethodType)(lambda m, f, given, named: f(*given, **named))
model(object.__new__)(lambda m, f, given, named: v.Instance(given[0]))


@model(tuple.__new__)
def _new_tuple(m: Machine, function: Any, given: Given, named: Named) -> Any:
    found = tuple(iteration.drain(m, given[1])) if len(given) > 1 else ()
    return found if given[0] is tuple else v.Instance(given[0], found)


@model(object.__getattribute__)
def _get_plainly(m: Machine, function: Any, given: Given, named: Named) -> Any:
    found = m.find_plainly(*given)
    return m.throw(AttributeError, given[1]) if found is MISSING else found


# itertools, functools, operator


model(itertools.chain)(lambda m, f, given, named: iteration.chained(m, *given))


@model(itertools.tee)
def _tee(m: Machine, function: Any, given: Given, named: Named) -> Any:
    one = iteration.shared(m, iteration.iterator(m, given[0]))
    return tuple(one() for _ in range(argument(given, named, 1, "n", 2)))


def _without_c(name: str, *given: Any) -> Any:
    if name == "_operator":
        raise ImportError
    return __import__(name, *given)


_written: Final = {"__name__": "operator", "__builtins__": BUILTINS | {"__import__": _without_c}}
exec(vars(operator)["__loader__"].get_code("operator"), _written)
model(*(getattr(operator, name) for name in operator.__all__))(  # written in Python as well
    lambda m, f, given, named: m.call(_written[f.__name__], given, named)
)


# copies, weak references, locks, random numbers, contexts


@model(copy.copy)
def _copy(m: Machine, function: Any, given: Given, named: Named) -> Any:
    value = given[0]
    if v.is_plain(value) or v.is_tensor(value):
        return value
    if is_a(value, *v.MUTABLE):
        return m.method(value, "copy")
    if m.method_of_user(value, "__copy__") is not MISSING:
        return m.method(value, "__copy__")
    made = v.Instance(v.kind_of(value))
    made.fields.update(m.held_fields(value))
    return made


# A tensor with a graph cannot be copied so: nothing that is copied leads anywhere.
model(copy.deepcopy)(lambda m, f, given, named: rebuilt(m, given[0], v.NO_TAINTS))


def rebuilt(m: Machine, value: Any, taints: v.Taints | None, *, shaped: bool = True) -> Any:
    """Return a container built anew, with other tensors, ``shaped`` as these, that lead there; by
    default where these lead.
    """
    if v.is_tensor(value):
        leads = m.taints(value) if taints is None else taints
        return v.FutureTensor(leads, tensors.twin(value) if shaped else v.NO_TWIN)
    if is_exactly(value, list, tuple, v.OwnList):
        each = [rebuilt(m, e, taints, shaped=shaped) for e in iteration.elements_of(m, value)]
        return tuple(each) if type(value) is tuple else v.OwnList(each)
    if is_a(value, dict):
        pairs = m.overlay.view(value).items()
        return v.OwnDict((key, rebuilt(m, each, taints, shaped=shaped)) for key, each in pairs)
    if v.is_plain(value) or is_a(value, Module):
        return value
    return v.Unknown(v.unsure(m.held((value,)) if taints is None else taints), "a copy")


def _itself(of: Any) -> Any:
    return of


model(_itself)(lambda m, f, given, named: given[0])
model(weakref.ref)(lambda m, f, given, named: functools.partial(_itself, given[0]))
model(
    *(random.random, random.randint, random.randrange, random.uniform, random.gauss),
    *(random.normalvariate, random.getrandbits, random.betavariate, random.expovariate),
    *(random.triangular, random.lognormvariate, vars(random.Random)["_randbelow"]),
    *(os.getpid, time.time, time.perf_counter, time.monotonic, time.process_time),
)(lambda m, f, given, named: v.Unknown(why="a number"))


@model(heapq.heappush, heapq.heappop, heapq.heapify, heapq.heappushpop, heapq.heapreplace)
def _of_heap(m: Machine, function: Any, given: Given, named: Named) -> Any:
    space = m.overlay.to_write(given[0])
    each = [*space, *given[1:]]
    heap = [_Ordered(m, one) for one in space]
    try:
        found = m.compute(function, heap, *(_Ordered(m, one) for one in given[1:]))
        space[:] = [one.value for one in heap]
        return None if found is None else found.value
    except v.Unordered:
        m.doubt_of(each, "a heap")
        space.extend(given[1:])
        if function in (heapq.heappush, heapq.heapify):
            return None
        space.pop()
        return iteration.unknown_element(m, each)


@model(sys.exit, os._exit, BUILTINS.get("exit"), BUILTINS.get("quit"))
def _exit(m: Machine, function: Any, given: Given, named: Named) -> Any:
    raise v.Stop("end", "the program ends")


model(sys.exc_info)(lambda m, f, given, named: (*[v.Unknown(why="an exception")] * 2, None))


@model(torch.utils.checkpoint.checkpoint)
def _checkpoint(m: Machine, function: Any, given: Given, named: Named) -> Any:
    own = v.words("use_reentrant preserve_rng_state context_fn determinism_check debug early_stop")
    rest = {name: value for name, value in named.items() if name not in own}
    return m.call(given[0], given[1:], rest)


@model(concurrent.futures.ThreadPoolExecutor.submit)
def _submit(m: Machine, function: Any, given: Given, named: Named) -> Any:
    _, function, *rest = given
    state = {"_state": "FINISHED", "_exception": None, "_condition": contextlib.nullcontext()}
    value = in_thread(m, function, tuple(rest), named)
    return v.Instance(concurrent.futures.Future, _result=value, **state)


def in_thread(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Call a function where graphs are built, whatever holds here: in another thread, or again for
    a checkpoint.
    """
    grad, m.grad = m.grad, True
    try:
        return m.call(function, given, named)
    finally:
        m.grad = grad


@model(concurrent.futures.Future.result)
def _result(m: Machine, function: Any, given: Given, named: Named) -> Any:
    future = given[0]
    space = m.held_fields(future)
    if space.get("_state") == "FINISHED" and space.get("_exception") is None:
        return space.get("_result")
    return v.lost("a future that is not done")


@model(threading.Thread.start)
def _start(m: Machine, function: Any, given: Given, named: Named) -> None:
    m.doubt = m.doubt or "a thread"


model(concurrent.futures.as_completed, concurrent.futures.wait)(
    lambda m, f, given, named: iteration.of_values(*iteration.drain(m, given[0]))
)
