"""Reading the variables of frames: what a look finds, and that the program cannot tell that it was looked at."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CellType, FrameType
from typing import Any

import pytest
import torch

from gradscope.program import variables as reader
from tests import known


def read() -> dict[str, object]:
    return dict(reader.local_variables(sys._getframe(1)))


# what a look finds


def test_a_function_shows_arguments_variables_and_cells() -> None:
    outer = "outer"

    def function(first: int, *rest: int, key: int = 3, **more: int) -> dict[str, object]:
        own, shared = 7, 8
        if first > 100:
            unbound = 1
            assert unbound

        def inner() -> tuple[int, str]:
            return shared, outer

        found = read()
        assert (inner(), own)[1] == 7
        return found

    found = function(1, 2, later=4)
    inner = found.pop("inner")
    assert callable(inner)
    given = {"first": 1, "rest": (2,), "key": 3, "more": {"later": 4}}
    assert found == given | {"own": 7, "shared": 8, "outer": "outer"}


def test_a_cell_that_is_not_bound_yet_is_no_variable() -> None:
    def function() -> dict[str, object]:
        def inner() -> int:
            return later

        found = read()
        later = 1
        assert inner() == later
        return found

    assert set(function()) == {"inner"}


def test_a_variable_that_holds_a_cell_shows_the_cell() -> None:
    cell = CellType(5)

    def function() -> dict[str, object]:
        mine = cell
        assert mine
        return read()

    assert function() == {"mine": cell, "cell": cell}


def test_generators_comprehensions_and_class_bodies_show_their_variables() -> None:
    def generate() -> Iterator[int]:
        own = 3
        yield own
        yield own

    generator = generate()
    next(generator)
    assert dict(reader.local_variables(generator.gi_frame)) == {"own": 3}  # type: ignore[attr-defined]
    assert [set(read()) >= {"each"} for each in (1,)] == [True]

    class Body:
        value = 4
        seen = read()

    assert Body.seen["value"] == 4


def test_a_function_that_has_ended_shows_what_its_traceback_keeps() -> None:
    def fail() -> None:
        kept = 9
        raise ValueError(kept)

    try:
        fail()
    except ValueError as error:
        traceback = error.__traceback__
    assert traceback is not None
    frame = known(traceback.tb_next).tb_frame
    assert dict(reader.local_variables(frame)) == {"kept": 9}
    frame.clear()
    assert reader.local_variables(frame) == ()


def test_another_threads_frame_shows_its_variables() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        there = 6
        ready.set()
        done.wait()
        assert there

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    frame: FrameType | None = sys._current_frames()[thread.ident or 0]
    while frame is not None and frame.f_code.co_name != "work":
        frame = frame.f_back
    found = dict(reader.local_variables(known(frame)))
    done.set()
    thread.join()
    assert found["there"] == 6


def test_one_variable_of_a_function_by_its_name() -> None:
    def function(first: int) -> list[Any]:
        def inner() -> int:
            return first

        frame = sys._getframe()
        found = [reader.Variable(frame.f_code, n).of(frame) for n in ("first", "frame", "later")]
        later = inner()
        assert later
        return found

    first, frame, unbound = function(1)
    assert (first, type(frame), unbound) == (1, FrameType, None)


def test_the_locals_come_before_the_globals() -> None:
    def function() -> list[tuple[str, Any]]:
        torch = 1
        assert torch
        return reader.variables(sys._getframe())

    named = [value for name, value in function() if name == "torch"]
    assert named == [1, torch]


# the program does not notice

LOOKS: list[Callable[[FrameType], object]] = [
    reader.local_variables,
    reader.variables,
    lambda frame: reader.Variable(frame.f_code, "x").of(frame),
]


@pytest.mark.parametrize("look", LOOKS)
def test_what_locals_returned_stays_as_it_is(look: Callable[[FrameType], object]) -> None:
    def function() -> dict[str, Any]:
        x = 5
        mine = locals()
        later = x
        look(sys._getframe())
        assert later
        return mine

    assert {**function(), "look": None} == {"x": 5, "look": None}


@pytest.mark.parametrize("look", LOOKS)
def test_what_f_locals_returned_stays_as_it_is(look: Callable[[FrameType], object]) -> None:
    def function() -> dict[str, Any]:
        x = 5
        mine = sys._getframe().f_locals
        before = dict(mine)
        later = x
        look(sys._getframe())
        assert later
        return before if mine.keys() == before.keys() or sys.version_info >= (3, 13) else {}

    assert function()["x"] == 5


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_keeps_nothing_alive(look: Callable[[FrameType], object]) -> None:
    def function() -> bool:
        x = torch.ones(1)
        gone = weakref.ref(x)
        look(sys._getframe())
        del x
        return gone() is None

    assert function()


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_under_a_debugger_keeps_nothing_alive(look: Callable[[FrameType], object]) -> None:
    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return trace

    def function() -> tuple[bool, int]:
        x, number = torch.ones(1), 1
        gone = weakref.ref(x)
        look(sys._getframe())
        number += 1
        del x
        return gone() is None, number

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = function()
    finally:
        sys.settrace(before)
    assert result == (True, 2)


def test_a_class_body_keeps_a_class_of_its_own() -> None:
    class Body:
        __class__ = property(lambda self: int)  # up to Python 3.12, asking for f_locals deletes it
        value = 4
        seen = read()
        is_module = reader.is_module_level(sys._getframe())

        def method(self) -> Any:
            return super().__init__()

    assert "__class__" in vars(Body)
    assert not Body.is_module
    assert Body.seen.get("value", 4) == 4


def test_a_mapping_of_the_programs_is_not_read() -> None:
    class Mapping(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError

    code = compile("x = 1\nframe = getframe()", "<stdin>", "exec")
    namespace = Mapping()
    exec(code, {"getframe": sys._getframe}, namespace)
    assert reader.local_variables(namespace["frame"]) == ()


READS_WHILE_COLLECTING = """
import gc, sys, threading
from gradscope.program.variables import frames_of_threads, local_variables

class Cycle:
    def __init__(self):
        self.itself, self.local = self, threading.local()
        self.local.value = 1

def function():
    local = Cycle()
    return local_variables(sys._getframe()), frames_of_threads()

gc.set_threshold(1, 1, 1)
for _ in range(500):
    function()
"""


def test_a_collection_that_starts_while_variables_are_read_does_not_wait_forever() -> None:
    command = [sys.executable, "-c", READS_WHILE_COLLECTING]
    subprocess.run(command, check=True, timeout=240)
