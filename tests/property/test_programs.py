"""The random programs themselves: they are the same each time, and they meet what they are there to meet."""

from __future__ import annotations

from collections import Counter

from tests.property.operations import IN_PLACE
from tests.property.programs import BACKWARD, FORWARD, GRAD, OTHER, random_program, run

COUNT = 300


def test_a_program_gives_the_same_each_time() -> None:
    for seed in range(20):
        assert run(random_program(seed)) == run(random_program(seed))


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
