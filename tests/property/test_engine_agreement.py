"""What gradscope calls before a backward call runs is exactly what torch's engine then raises, in random programs."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.property.agreement import (
    Comparison,
    compare,
    compare_in_a_loop,
    repeated,
    with_plain_calls,
)
from tests.property.programs import Program, Step, programs
from tests.property.rounds import Round, rounds


@rounds
@pytest.mark.parametrize("hooks", [True, False], ids=["hooks", "no-hooks"])
def test_called_exactly_when_the_engine_raises(hooks: bool, programs_of: Round) -> None:
    programs_of.try_out(calls_are_right, 100, hooks=st.just(hooks), program=programs())


def calls_are_right(hooks: bool, program: Program) -> None:
    replay = f'replay: python -m tests.property.programs "{program}"'
    expect_none(compare(program, hooks), replay)


@rounds
def test_told_exactly_when_the_engine_raises_where_only_some_calls_are_looked_at(
    programs_of: Round,
) -> None:
    """What comes of a call that was not looked at is told after the error."""
    some = st.lists(st.booleans(), min_size=1, max_size=7)
    programs_of.try_out(some_calls_are_right, 100, looked_at=some, program=programs())


def some_calls_are_right(looked_at: list[bool], program: Program) -> None:
    replay = f"looked_at = {looked_at}, program = {program}"
    expect_none(compare(program, hooks=True, looked_at=looked_at), replay)


# Known limit: without hooks it cannot be seen what C++ functions saved, as torch's foreach nodes.
CHANGE = programs().map(lambda p: p[0]).filter(lambda step: "foreach" not in step[0])
CHANGES = st.lists(st.tuples(st.integers(0, 24), CHANGE), max_size=3)


@rounds
def test_called_exactly_while_iterations_repeat(programs_of: Round) -> None:
    """The same with the hooks lifted as soon as an iteration repeats."""
    programs_of.try_out(calls_are_right_in_a_loop, 40, base=programs(), changes=CHANGES)


def calls_are_right_in_a_loop(base: Program, changes: list[tuple[int, Step]]) -> None:
    iterations = repeated(with_plain_calls(base), changes)
    expect_none(compare_in_a_loop(iterations), f"iterations = {iterations}")


def expect_none(comparison: Comparison, replay: str) -> None:
    faults = list(comparison.faults())
    assert not faults, "\n".join([*faults, replay])


def test_an_error_of_a_call_within_another_is_told_by_the_graph_of_the_inner_one() -> None:
    program: Program = [
        ("attention", 11, 4, 0),
        ("computing_hooks", 3, 6, 4),
        ("backward_in_hook", 9, 10, 5),
        ("pow_tensor", 5, 1, 0),
        ("expand", 0, 10, 2),
        ("normalize", 3, 8, 1),
        ("worker:cumsum", 1, 10, 5),
        ("sum_rows", 3, 7, 1),
        ("sum", 10, 4, 1),
        ("thread:checkpoint_reentrant", 3, 3, 7),
        ("div", 7, 4, 0),
        ("to_double", 10, 0, 2),
        ("grad_retain", 1, 11, 6),
    ]
    some_calls_are_right([False, True], program)


def test_a_node_that_cannot_be_asked_is_what_was_freed_where_none_that_can_be_was() -> None:
    """A foreach node: a call that was not looked at frees it, and the next one fails at it alone."""
    program: Program = [
        ("grad_strict", 4, 9, 0),
        ("softplus", 0, 7, 1),
        ("penalty", 9, 8, 5),
        ("sqrt", 6, 1, 0),
        ("foreach", 8, 7, 2),
        ("backward_twice", 1, 5, 2),
        ("once", 2, 6, 3),
        ("add_scalar", 0, 5, 1),
        ("grad_create", 9, 10, 5),
    ]
    some_calls_are_right([False], program)


@pytest.mark.parametrize("where", ["", "thread:", "worker:"])
def test_an_error_of_a_call_within_another_is_told_once_in_any_thread(where: str) -> None:
    program: Program = [("backward_in_hook", 0, 0, 5), (f"{where}backward", 0, 0, 0)]
    some_calls_are_right([False], program)


@pytest.mark.parametrize("where", ["", "worker:"])
def test_a_node_that_only_a_call_that_was_not_looked_at_has_run_may_be_freed(where: str) -> None:
    """A look has met the node before, in a call that does not run it."""
    program: Program = [
        ("grad_create", 10, 2, 1),
        (f"{where}grad_create", 10, 8, 2),
        ("backward_several", 8, 10, 7),
        (f"{where}grad_create", 6, 8, 0),
    ]
    some_calls_are_right([False, True, True, False, True, True], program)
