"""What the reader makes of values, iterators and functions, and that none of the user's code runs."""

from __future__ import annotations

import abc
import asyncio
import builtins
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import enum
import functools
import heapq
import importlib.util
import inspect
import itertools
import operator
import os
import queue
import random
import sys
import threading
import types
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any, ClassVar

import numpy
import pytest
import torch
from reading_ahead import ahead_of, machine_for
from torch.utils._pytree import tree_map

from gradscope.code.bytecode import MISSING, flow_of
from gradscope.program.ahead.machine import MODELS
from gradscope.program.ahead.values import (
    FutureTensor,
    Raised,
    Stop,
    Unknown,
    is_plain,
    key_of,
    value_of,
)
from gradscope.program.variables import on_stack

LIST = [10, 11, 12, 13, 14]
DICT = {"a": 1, "b": 2, "c": 3}


class Mine(list[int]):
    """A list that does not say what it is asked."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


EXACT: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter(LIST),
    "tuple": lambda: iter(tuple(LIST)),
    "range": lambda: iter(range(3, 9)),
    "range down": lambda: iter(range(9, 3, -1)),
    "reversed list": lambda: reversed(LIST),
    "reversed tuple": lambda: reversed(tuple(LIST)),
    "dict": lambda: iter(DICT),
    "values": lambda: iter(DICT.values()),
    "items": lambda: iter(DICT.items()),
    "set": lambda: iter({1, 2, 3}),
    "deque": lambda: iter(collections.deque(LIST)),
    "list of a class": lambda: list.__iter__(Mine(LIST)),
    "enumerate": lambda: enumerate(LIST, 3),
    "zip": lambda: zip(LIST, "abcde", strict=True),
    "map": lambda: map(str, LIST),
    "filter": lambda: filter(lambda x: x > 10, LIST),
    "generator": lambda: (each * 2 for each in LIST),
    "chain": lambda: itertools.chain(LIST, tuple(LIST)),
    "repeat": lambda: itertools.repeat(LIST, 4),
    "count": lambda: zip(LIST, itertools.count(3, 0.5), strict=False),
}
if sys.version_info < (3, 12):  # later ones warn of what says where they stand
    EXACT["slice"] = lambda: itertools.islice(iter(LIST), 1, 4)
    EXACT["tee"] = lambda: itertools.tee(iter(LIST))[1]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_what_is_coming_comes(name: str, taken: int) -> None:
    iterator = EXACT[name]()
    for _ in range(taken):
        next(iterator)
    said = ahead_of(iterator)
    assert said == list(iterator)


def test_nested_loops_are_found_on_the_stack() -> None:
    outer, inner = iter(LIST), enumerate(LIST)
    for _ in outer:
        for _ in inner:
            frame = sys._getframe()
            assert on_stack(frame, 0) is outer
            assert on_stack(frame, 1) is inner
            assert on_stack(frame, 10_000) is MISSING
            assert ahead_of(on_stack(frame, 0)) == LIST[1:]
            return


CALLS: dict[str, Callable[[], Any]] = {
    "sorted": lambda: sorted([3, 1, 2], key=lambda x: -x),
    "comprehension": lambda: [x for x in range(5) if x % 2],
    "dict": lambda: {k: v + 1 for k, v in zip("ab", (1, 2), strict=True)}["b"],
    "unpacking": lambda: (lambda a, *b, c=1, **d: (a, b, c, d["e"]))(1, 2, 3, e=4),
    "try": lambda: _caught(),
    "with": lambda: _within(),
    "generator": lambda: list(_counted(3)),
    "reduce": lambda: functools.reduce(lambda a, b: a * b, range(1, 5)),
    "partial": lambda: functools.partial(pow, 2)(5),
    "namedtuple": lambda: collections.namedtuple("P", "x y")(1, 2).y if False else 2,
    "match": lambda: _matched({"kind": "a", "n": 3}),
    "islice": lambda: list(itertools.islice(itertools.count(3), 2, 5)),
    "attrgetter": lambda: operator.attrgetter("real")(3),
    "string": lambda: ",".join(f"{x:>2}" for x in (1, 2)),
    "slice": lambda: LIST[1:-1],
    "tee": lambda: [*map(max, *(a for a in itertools.tee(iter(LIST))))],
    "sorted pairs": lambda: sorted([(2, {1}), (1, {2}), (2.5, {3})], reverse=True)[0][1],
    "sorted downwards": lambda: sorted([1, -1, 2, -2], key=abs, reverse=True),
    "best of pairs": lambda: min([(2, {1}), (1, {2})])[1],
    "heap": lambda: _from_heap([(3, {1}), (1, {2}), (2, {3})]),
    "largest": lambda: heapq.nlargest(2, [3, 1, 5, 4]) + heapq.nsmallest(1, [3, 1], key=abs),
    "asynchronous generator": lambda: _waited_for(_total()),
    "anext": lambda: _waited_for(_first()),
    "in": lambda: "a" in DICT and 10 in LIST,
    "dict of pairs": lambda: (
        dict(zip("ab", LIST, strict=False)) | dict(zip("c", (9,), strict=True))
    ),
    "tree": lambda: tree_map(lambda x: x + 1, {"a": 1, "b": (2, [3])}),
    "method": lambda: types.MethodType(pow, 2)(3),
    "stack": lambda: _stacked([]),
    "member": lambda: Colour["RED"].value,
    "descriptor": lambda: Described().doubled,
    "tuple without elements": lambda: len(Empty()),
    "dropwhile": lambda: [*itertools.dropwhile(lambda x: x < 12, LIST)],
    "filterfalse": lambda: [*itertools.filterfalse(lambda x: x % 2, LIST)],
    "product": lambda: [*itertools.product("ab", LIST[:2])][2],
    "cycle": lambda: [*itertools.islice(itertools.cycle(iter(LIST)), 7)],
    "reduce from None": lambda: functools.reduce(
        lambda a, b: b if a is None else a + b, LIST, None
    ),
    "equal parts": lambda: (Pair(1, [2]) == Pair(1, [2]), [1, [2]] == [1, [3]], Pair(1) != Pair(2)),
    "equal members": lambda: (RED == Colour.RED, RED == 1, RED in [1, 2]),
    "in order": lambda: [each.first for each in sorted([Pair(3), Pair(1), Pair(2)])],
    "smallest": lambda: min(Pair(3), Pair(1), key=lambda pair: (pair.first, pair)).first,
    "partial method": lambda: Pair(1).add_two(),
    "counter": lambda: collections.Counter("abca").most_common(1),
    "methodcaller": lambda: operator.methodcaller("upper")("a"),
    "keys in common": lambda: DICT.keys() & {"a", "z"},
    "as text": lambda: (repr([1, "a"]), str([1, 2]), "{}".format("y")),
    "attributes": lambda: (Asked().x, Asked().y, hasattr(Asked(), "z")),
    "from an executor": lambda: [
        *concurrent.futures.ThreadPoolExecutor(1).map(lambda x: x + 1, LIST)
    ],
}


@functools.total_ordering
@dataclasses.dataclass
class Pair:
    first: int
    second: list[int] = dataclasses.field(default_factory=list)

    def __lt__(self, other: Pair) -> bool:
        return self.first < other.first

    def add(self, number: int) -> int:
        return self.first + number

    add_two: ClassVar[Any] = functools.partialmethod(add, 2)


class Kind(str, enum.Enum):  # noqa: UP042
    FEW = "few"


class Sizable(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return True if any("size" in vars(base) for base in other.__mro__) else NotImplemented


Sizable.register(list)


@functools.lru_cache
def _cached(a: Any, b: int = 1) -> tuple[Any, int]:
    return a, b


class Sized:
    def size(self, b: int = 1) -> int:
        return b


class Kept:
    @functools.lru_cache  # noqa: B019
    def twice(self, n: int) -> int:
        return 2 * n


class Asked:
    x = 1

    def __getattribute__(self, name: str) -> Any:
        return 7 if name == "y" else super().__getattribute__(name)


@pytest.mark.parametrize("name", ["get", "pop", "setdefault"])
def test_a_key_that_may_equal_another_is_not_said_to_be_missing(name: str) -> None:
    class Key:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    held: dict[Any, int] = {Key(): 1}
    machine = machine_for()
    found = machine.call(lambda: getattr(held, name)(Key(), 0), (), {})
    assert isinstance(found, Unknown)
    assert machine.call(lambda: held.get((1, Key), 0), (), {}) == 0
    machine.let_go()


class Colour(enum.Enum):
    RED = 1


RED: Any = Colour.RED


class Empty(tuple[int, ...]):
    def __new__(cls) -> Empty:
        return super().__new__(cls)


class Doubled:
    def __get__(self, owner: Any, kind: type) -> int:
        return int(owner.kept)

    def __set__(self, owner: Any, value: int) -> None:
        owner.kept = 2 * value


class Described:
    doubled: Any = Doubled()

    def __init__(self) -> None:
        self.doubled = 3


@contextlib.contextmanager
def _logged(log: list[int]) -> Iterator[None]:
    log.append(1)
    yield
    log.append(2)


def _stacked(log: list[int]) -> list[int]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(_logged(log))
    return log


def _from_heap(found: list[Any]) -> list[Any]:
    heapq.heapify(found)
    heapq.heappush(found, (0, {4}))
    return [heapq.heappop(found), heapq.heapreplace(found, (9, {5})), heapq.heappop(found), *found]


async def _later(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


async def _total() -> list[int]:
    return [each async for each in _later(3)]


async def _first() -> int:
    return await anext(_later(3))


def _waited_for(coroutine: Any) -> Any:
    try:
        return coroutine.__await__().send(None)
    except StopIteration as stop:
        return stop.value


def _caught() -> str:
    try:
        raise KeyError("k")
    except (ValueError, LookupError) as error:
        return str(error.args[0])
    finally:
        LIST.count(1)


@contextlib.contextmanager
def _manager(log: list[int]) -> Iterator[int]:
    log.append(1)
    yield 5
    log.append(2)


def _within() -> list[int]:
    log: list[int] = []
    with _manager(log) as value:
        log.append(value)
    return log


def _counted(n: int) -> Iterator[int]:
    i = 0
    while i < n:
        got = yield i
        assert got is None
        i += 1


def _matched(value: Any) -> Any:
    match value:
        case {"kind": "a", "n": int(n)} if n > 2:
            return n
        case _:
            return None


_CACHED: Any = _cached
_FEW: Any = Kind.FEW
_KEPT: Any = Kept()
_ARRAY = numpy.zeros((2, 3))
_VALUES: list[Any] = [1, [], None, "", _FEW]
CALLS |= {
    "members that are texts": lambda: (
        _VALUES[-1] == "few",
        Kind("few").value,
        Kind.FEW in ("few",),
    ),
    "abstract classes": lambda: (
        *(isinstance(each, Sizable) for each in (Sized(), Asked(), *_VALUES)),
        *(issubclass(each, collections.abc.Sized) for each in (Sized, Asked, dict)),
        *(isinstance(each, collections.abc.Hashable) for each in _VALUES),
    ),
    "cached": lambda: (_CACHED(1, b=2), _CACHED("x"), _KEPT.twice(3), _KEPT.twice(n=4)),
    "weak reference": lambda: weakref.ref(Kept)() is Kept,
    "signature": lambda: (
        *("b" in inspect.signature(each).parameters for each in (_CACHED, _counted, Sized().size)),
        inspect.getfullargspec(Sized.size).args,
    ),
    "environment": lambda: (os.getenv("GRADSCOPE_UNSET", "x"), "HOME" in os.environ),
    "union of classes": lambda: [isinstance(each, int | list | None) for each in _VALUES],
    "equal dicts": lambda: ({} == {}, {"a": 1} == {}, {} != {"a": 1}),
    "elements of an array": lambda: [
        isinstance(each, numpy.ndarray) for each in (_ARRAY[0], _ARRAY[:1])
    ],
    "class as text": lambda: (str(int), str(Sized)),
    "module that is there": lambda: [
        importlib.util.find_spec(name) is None for name in ("torch", "gradscope_unheard_of")
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_python_is_read_as_it_runs(name: str) -> None:
    machine = machine_for()
    assert machine.call(CALLS[name], (), {}) == CALLS[name]()
    machine.let_go()


def test_what_the_program_would_write_stays_in_the_overlay() -> None:
    held: dict[str, Any] = {"list": [1], "n": 0}

    class Thing:
        size = 1

    thing = Thing()

    def change() -> Any:
        held["list"].append(2)
        held["n"] += 1
        thing.size = 7
        return held["n"], len(held["list"]), thing.size

    assert machine_for().call(change, (), {}) == (1, 2, 7)
    assert held == {"list": [1], "n": 0}
    assert vars(thing) == {}


def test_what_is_held_in_c_is_held() -> None:
    h = torch.ones(3, requires_grad=True).exp()
    longest = itertools.zip_longest([1, [h]], [])
    next(longest)  # the place of the second is empty now: to index it is to crash
    variable = ContextVar[torch.Tensor]("variable")
    variable.set(h)
    machine = machine_for(h)
    for each in (longest, variable, itertools.repeat(h), itertools.cycle([h])):
        assert machine.held(each)
    machine.let_go()


def test_an_operator_leads_where_its_arguments_lead() -> None:
    h, blank = torch.ones(3, requires_grad=True).exp(), torch.zeros(3)

    def written() -> torch.Tensor:
        blank.__setitem__(0, h[0])
        return blank

    @torch.inference_mode()
    def inferred() -> torch.Tensor:
        return h * 2

    machine = machine_for(h)
    for function in (
        written,
        lambda: h * 2,
        lambda: torch.nn.functional.relu(h).sum(),
        lambda: torch.stack([h, h])[0],
        lambda: sum([h, h]),
        lambda: (torch.zeros(3).add_(h),)[0],
    ):
        assert machine.taints(machine.call(function, (), {}))
    for function in (
        *(inferred, lambda: h.detach(), lambda: h > 1, lambda: h.argmax(), lambda: h.data),
    ):
        assert not machine.taints(machine.call(function, (), {}))
    shape = machine.call(lambda: (h[None] @ torch.ones(3, 4)).shape, (), {})
    assert tuple(shape) == (1, 4)
    machine.let_go()


class Metaclass(type):
    """Says nothing that it is asked."""

    def __hash__(cls) -> int:
        raise AssertionError

    def __eq__(cls, other: object) -> bool:
        raise AssertionError

    def __getattr__(cls, name: str) -> Any:
        raise AssertionError

    def __instancecheck__(cls, instance: object) -> bool:
        raise AssertionError


class Strange(metaclass=Metaclass):
    """Raises whatever is done with it."""

    __class__ = property(lambda self: 1 / 0)

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError

    def _raise(self, *_: Any) -> Any:
        raise AssertionError

    __hash__ = __eq__ = __bool__ = __len__ = __iter__ = __next__ = __call__ = _raise
    __getitem__ = __setitem__ = __contains__ = __add__ = __radd__ = __del__ = _raise
    __repr__ = __str__ = __format__ = __enter__ = __exit__ = _raise
    del __del__


def test_none_of_the_users_code_runs() -> None:
    strange = Strange()
    ran: list[str] = []

    class Loud:
        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            return 1

        @property
        def size(self) -> int:
            ran.append("size")
            return 3

        def __eq__(self, other: object) -> bool:
            ran.append("==")
            return True

        def __hash__(self) -> int:
            ran.append("hash")
            return 1

    loud, held = Loud(), {"a": strange}

    def use() -> Any:
        found = [loud.size, loud.other, loud == 3, {loud: 1}, loud in [1, 2]]
        found += [isinstance(each, int) for each in held.values()]
        return len(found)

    assert machine_for().call(use, (), {}) == 6
    assert ran == []
    machine = machine_for()
    for function in (
        lambda: strange.x,
        lambda: strange[0],
        lambda: [*strange],
        lambda: strange + 1,
        lambda: bool(strange),
        lambda: strange in {1: 2},
        lambda: f"{strange}",
    ):
        with contextlib.suppress(Raised):
            machine.call(function, (), {})
    assert value_of(key_of(strange)) is strange
    machine.let_go()


UNKNOWN_ON_PURPOSE = {
    *("__build_class__", "copyright", "credits", "license", "help", "memoryview"),
    *("bytearray", "property", "staticmethod", "classmethod", "object", "__import__"),
}


@pytest.mark.parametrize(
    "name", [n for n in dir(builtins) if callable(getattr(builtins, n)) and n != "__loader__"]
)
def test_each_function_of_python_has_a_model_or_is_made(name: str) -> None:
    function = getattr(builtins, name)
    is_exception = isinstance(function, type) and issubclass(function, BaseException)
    assert id(function) in MODELS or is_exception or name in UNKNOWN_ON_PURPOSE


MODULES: tuple[ModuleType, ...] = (
    *(itertools, functools, operator, collections, heapq, copy, contextlib, weakref, random),
    *(asyncio, concurrent.futures, queue, threading),
)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_no_function_of_the_library_breaks_the_reader(module: ModuleType) -> None:
    """Each is modelled, entered, or unknown: none is a defect, and none claims to be certain."""
    h = torch.ones(3, requires_grad=True).exp()
    for name in getattr(module, "__all__", None) or dir(module):
        function = getattr(module, name)
        if not callable(function) or isinstance(function, type):
            continue
        if type(function) is types.FunctionType and id(function) not in MODELS:
            continue  # it is entered, or given up as unknown
        for given in ((h,), ([h],), (lambda x: x, [h])):
            machine = machine_for(h)
            with contextlib.suppress(Raised, Stop, TypeError, ValueError, LookupError):
                found = machine.call(function, given, {})
                taints = machine.held(found)
                assert isinstance(found, Unknown | FutureTensor) is False or all(
                    not taint.sure or isinstance(found, FutureTensor) for taint in taints
                )
            machine.let_go()


def test_names_of_what_is_called() -> None:
    def calls(model: Any, x: Any) -> None:
        model.opt.step(x)
        print(x, model.size)
        model.table["x"](x)
        super(type(x), x).step(x or model)
        model(x).sum().backward()

    flow = flow_of(calls.__code__)
    names = [flow.names_of_call(i) for i, each in enumerate(flow.instructions) if each.is_call]
    assert names[0] == ("model", "opt", "step")
    assert ("print",) in names
    assert ("", "step") in names
    assert ("model", "table") not in names
    assert names[-1] == ("", "backward")


def test_a_reading_lets_go_of_all() -> None:
    h = torch.ones(3, requires_grad=True).exp()
    died: list[int] = []
    weakref.finalize(h, died.append, 1)

    def program(h: torch.Tensor = h) -> Any:
        kept: list[Any] = [h]

        def again() -> Any:
            return again, kept

        return again

    machine = machine_for(h)
    found = machine.call(program, (), {})
    machine.let_go()
    del found, machine, program, h
    assert died


def test_a_deep_value_is_not_followed_into_the_ground() -> None:
    deep: tuple[Any, ...] = ()
    for _ in range(200_000):
        deep = (deep,)
    assert not is_plain(deep)
    assert is_plain(((1, "a"), frozenset({2.0, (None, True)})))
    assert not is_plain((1, [2]))
