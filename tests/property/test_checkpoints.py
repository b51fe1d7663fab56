"""Of random checkpoints it is told which compute something else in the backward call, and nothing is changed by that."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.property.checkpoints import BETWEEN, OPERATIONS, Options, faults
from tests.property.rounds import Round, rounds

NAMES = st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=6)
OPTIONS = st.builds(Options, *[st.booleans()] * len(Options._fields))


@rounds
def test_what_differs_is_told_and_nothing_else(programs_of: Round) -> None:
    programs_of.try_out(
        told_rightly, 100, names=NAMES, between=st.sampled_from(sorted(BETWEEN)), options=OPTIONS
    )


def told_rightly(names: list[str], between: str, options: Options) -> None:
    replay = f"faults({names}, {between!r}, {options})"
    wrong = faults(names, between, options)
    assert not wrong, "\n".join([*wrong, replay])
