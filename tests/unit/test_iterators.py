"""What a loop's iterator will still give, told without taking anything from it."""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradscope.code.liveness import MISSING
from gradscope.program.iterators import coming, on_stack

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
    "reversed dict": lambda: reversed(DICT),
    "values": lambda: iter(DICT.values()),
    "items": lambda: iter(DICT.items()),
    "ordered items": lambda: iter(collections.OrderedDict(DICT).items()),
    "set": lambda: iter({1, 2, 3}),
    "deque": lambda: iter(collections.deque(LIST)),
    "reversed deque": lambda: reversed(collections.deque(LIST)),
    "list of a class": lambda: list.__iter__(Mine(LIST)),
    "islice": lambda: itertools.islice(LIST, 5),
    "filter": lambda: filter(None, LIST),
    "generator": lambda: (each for each in LIST),
    "chain": lambda: itertools.chain(LIST, tuple(LIST)),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_what_is_coming_comes(name: str, taken: int) -> None:
    iterator = EXACT[name]()
    for _ in range(taken):
        next(iterator)
    said = [each for _, each in coming(iterator).items]
    came = list(iterator)
    if name in ("generator", "chain"):
        assert set(said) == set(came)
    else:
        assert said == came
    assert coming(iterator).items == []


def test_it_says_whether_it_is_at_its_end() -> None:
    iterator = iter(LIST)
    assert coming(iterator).all_known
    assert coming(iterator).items
    list(iterator)
    assert coming(iterator) == ([], True)
    assert coming(zip(LIST, iterator, strict=False)) == ([], True)
    assert not coming(each for each in LIST).all_known
    assert not coming(map(str, LIST)).all_known


def test_pairs_say_at_which_part_an_object_is() -> None:
    numbered = [("[0]", 5), ("[0]", 6), ("[1]", 10), ("[1]", 11)]
    assert coming(enumerate(LIST[:2], 5)).items == numbered
    pairs = zip("ab", enumerate(LIST[:1]), strict=False)
    assert ("[1][1]", 10) in coming(pairs).items
    endless = itertools.cycle(LIST)
    next(endless)
    assert {each for _, each in coming(endless).items} == set(LIST)


def test_what_is_not_of_python_itself_is_not_asked() -> None:
    class Metaclass(type):
        def __hash__(cls) -> int:
            raise AssertionError

        def __getattr__(cls, name: str) -> Any:
            raise AssertionError

    class Strange(metaclass=Metaclass):
        __class__ = property(lambda self: 1 / 0)

        def __iter__(self) -> Iterator[int]:
            raise AssertionError

        def __next__(self) -> int:
            raise AssertionError

    assert coming(Strange()) == ([], False)
    assert coming(MISSING) == ([], False)


def test_nested_loops_are_found_on_the_stack() -> None:
    outer, inner = iter(LIST), enumerate(LIST)
    for _ in outer:
        for _ in inner:
            frame = sys._getframe()
            assert on_stack(frame, 0) is outer
            assert on_stack(frame, 1) is inner
            assert on_stack(frame, 10_000) is MISSING
            assert [each for _, each in coming(on_stack(frame, 0)).items] == LIST[1:]
            return
