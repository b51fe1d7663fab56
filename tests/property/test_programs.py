"""The random programs themselves: they are the same each time, and they meet what they are there to meet."""

from __future__ import annotations

from collections import Counter
from functools import partial

from tests.property.agreement import in_a_new_thread
from tests.property.operations import IN_PLACE
from tests.property.programs import (
    BACKWARD,
    FORWARD,
    GRAD,
    OTHER,
    Outcome,
    Program,
    random_program,
    run,
)

COUNT = 300


def test_a_program_gives_the_same_each_time_in_a_new_thread() -> None:
    for seed in range(20):
        work = partial(run, random_program(seed))
        assert in_a_new_thread(work) == in_a_new_thread(work)


def test_a_program_of_several_threads_may_run_otherwise_where_nodes_were_built_before() -> None:
    """The engine runs ready nodes by their numbers, which go on in this thread and begin anew in others."""
    program: Program = [
        ("div_scalar", 3, 11, 0),
        ("grad_create", 2, 11, 4),
        ("relu_", 6, 11, 2),
        ("neg", 6, 1, 0),
        ("hooks_in_hooks", 4, 5, 7),
        ("in_a_thread", 4, 5, 3),
        ("view_mul_", 8, 5, 4),
        ("worker:grad_create", 2, 1, 3),
        ("div", 6, 4, 6),
        ("sgd", 9, 1, 6),
        ("backward_several", 1, 9, 2),
    ]

    def twice() -> list[list[Outcome]]:
        return [run(program) for _ in range(2)]

    first, second = in_a_new_thread(twice)
    assert first != second
    assert in_a_new_thread(twice) == [first, second]


def test_programs_meet_every_step_and_every_error() -> None:
    steps, programs = Counter[str](), Counter[str]()
    for seed in range(COUNT):
        program = random_program(seed)
        steps.update(name.rpartition(":")[2] for name, *_ in program)
        backward = [outcome for outcome in run(program) if outcome.is_backward]
        programs["second time"] += any(outcome.second_time for outcome in backward)
        programs["in place"] += any(outcome.in_place for outcome in backward)
        programs["clean"] += not any(outcome.error for outcome in backward)
    assert set(steps) == {*FORWARD, *IN_PLACE, *BACKWARD, *GRAD, *OTHER}
    assert 0.2 < programs["second time"] / COUNT < 0.45
    assert 0.1 < programs["in place"] / COUNT < 0.35
    assert programs["clean"] / COUNT > 0.3
