"""What is read next, as predicted from bytecode, against what random programs are seen to read when they are run."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

from hypothesis import strategies as st

from gradscope.code.liveness import Effect, all_reads, calls_after
from tests.property.rounds import Round, rounds

NAMES = ("a", "b", "c", "d")
STEPS = 400


class EnoughError(Exception):
    """The program has run long enough."""


class Watched(dict[str, Any]):
    """A namespace that logs every read and every binding of a name, and where the marked call stands."""

    def __init__(self, choices: list[bool]) -> None:
        super().__init__(dict.fromkeys(NAMES, 1))
        self.log: list[tuple[str, str]] = []
        self.marks: list[tuple[CodeType, int, int]] = []
        self.choices = choices
        self["mark"], self["flip"], self["some"] = self.mark, self.flip, self.some

    def __getitem__(self, name: str) -> Any:
        self.step("read", name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.step("bind", name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self.step("bind", name)
        super().__delitem__(name)

    def step(self, what: str, name: str) -> None:
        if name in NAMES:
            self.log.append((what, name))
            if len(self.log) > STEPS:
                raise EnoughError

    def mark(self) -> None:
        frame = sys._getframe(1)
        self.marks.append((frame.f_code, frame.f_lasti, len(self.log)))

    def flip(self) -> bool:
        return self.choices.pop() if self.choices else False

    def some(self) -> range:
        return range(2 if self.flip() else 1)


names = st.sampled_from(NAMES)
SIMPLE = st.one_of(
    st.builds("{} = {} + 1".format, names, names),
    st.builds("{} = {}".format, names, names),
    st.builds("{} += {}".format, names, names),
    st.builds("{0[0]}, {0[1]} = {1}, {2}".format, st.permutations(NAMES), names, names),
    st.builds("{} = 0".format, names),
    st.builds("print({}, end='') if flip() else None".format, names),
    st.builds("({} := {})".format, names, names),
    st.builds("{} = sum([k for k in [{}]])".format, names, names),
    st.builds("{0} = 0; del {0}; {0} = 0".format, names),
    st.sampled_from(["mark()", "pass", "x = mark()", "mark() or mark()"]),
)


def indented(body: list[str]) -> str:
    return textwrap.indent("\n".join(body), "    ")


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=4).map(indented)
    inside = st.lists(
        st.one_of(inner, st.sampled_from(["if flip(): break", "if flip(): continue"])),
        min_size=1,
        max_size=4,
    )
    loop = inside.map(indented)
    return st.one_of(
        st.builds("if flip():\n{}\nelse:\n{}".format, body, body),
        st.builds("for {} in some():\n{}".format, names, loop),
        st.builds("for k in some():\n{}\nelse:\n{}".format, loop, body),
        st.builds("while flip():\n{}".format, loop),
        st.builds("while True:\n{}\n    if not flip(): break".format, loop),
        st.builds(
            "try:\n{}\n    if flip(): raise KeyError\nexcept KeyError:\n{}".format, body, body
        ),
        st.builds(
            "try:\n{}\n    if flip(): raise KeyError\nexcept KeyError as {}:\n    {} = 0".format,
            body,
            names,
            names,
        ),
        st.builds("try:\n{}\nfinally:\n{}".format, body, body),
    )


STATEMENTS = st.recursive(SIMPLE, compound, max_leaves=12)
PROGRAMS = st.lists(STATEMENTS, min_size=2, max_size=8).map("\n".join)


def observed(program: str, choices: list[bool]) -> Iterator[tuple[CodeType, int, set[str]]]:
    """Run the program; for every time that it passed a mark, the names that were read next before they were rebound."""
    space = Watched(choices)
    with suppress(EnoughError, KeyError, NameError, TypeError):  # what was seen until then was seen
        exec(compile(program, "<program>", "exec"), {"print": lambda *args, end: None}, space)
    for code, lasti, start in space.marks:
        first: dict[str, str] = {}
        for what, name in space.log[start:]:
            first.setdefault(name, what)
        yield code, lasti, {name for name, what in first.items() if what == "read"}


@rounds
def test_every_read_that_happens_is_predicted(programs_of: Round) -> None:
    programs_of.try_out(
        every_read_that_happens_is_predicted,
        250,
        program=PROGRAMS,
        choices=st.lists(st.booleans(), max_size=25),
    )


def every_read_that_happens_is_predicted(program: str, choices: list[bool]) -> None:
    for code, lasti, read in observed(program, choices):
        assert read <= all_reads(code, lasti, NAMES).keys()


@rounds
def test_straight_code_is_predicted_exactly(programs_of: Round) -> None:
    programs_of.try_out(
        straight_code_is_predicted_exactly,
        150,
        program=st.lists(SIMPLE, min_size=2, max_size=10).map("\n".join),
    )


def straight_code_is_predicted_exactly(program: str) -> None:
    program = program.replace(" if flip() else None", "")
    for code, lasti, read in observed(program, []):
        found = {
            name
            for name, reads in all_reads(code, lasti, NAMES).items()
            if not reads[0].only_on_exception
        }
        assert found == read


@rounds
def test_a_function_is_understood_as_the_module_is(programs_of: Round) -> None:
    programs_of.try_out(a_function_is_understood_as_the_module_is, 150, program=PROGRAMS)


def a_function_is_understood_as_the_module_is(program: str) -> None:
    module = compile(program, "<program>", "exec")
    whole = compile(f"def f(a, b, c, d):\n{textwrap.indent(program, '    ')}", "<program>", "exec")
    function = next(constant for constant in whole.co_consts if isinstance(constant, CodeType))

    def told(code: CodeType, shift: int) -> set[tuple[str, int, Effect]]:
        found = (read for reads in all_reads(code, -1, NAMES).values() for read in reads)
        # Where an exception can strike differs: an optimised local is never looked up in vain.
        return {
            (read.name, read.site.line - shift, read.effect)
            for read in found
            if not read.only_on_exception
        }

    assert told(module, 0) == told(function, 1)


@rounds
def test_any_instruction_may_be_asked_about(programs_of: Round) -> None:
    programs_of.try_out(
        any_instruction_may_be_asked_about,
        100,
        program=PROGRAMS,
        offset=st.integers(min_value=-1, max_value=400),
    )


def any_instruction_may_be_asked_about(program: str, offset: int) -> None:
    code = compile(program, "<program>", "exec")
    for reads in all_reads(code, offset, NAMES).values():
        assert all(1 <= read.site.line <= program.count("\n") + 1 for read in reads)
    assert all(call.target for call in calls_after(code, offset))
