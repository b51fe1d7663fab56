"""Random programs in which a state travels in many ways: what fails is told early, and nothing else is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.property.ahead import Told, told_of
from tests.property.rounds import LONG, SEED
from tests.property.structures import program


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_fails_is_told_before_and_nothing_else(tmp_path: Path) -> None:
    totals = told(range(200), tmp_path)
    assert totals[Told.HEALTHY] >= 60
    assert totals[Told.EARLY] >= 3 * totals[Told.LATE]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_fails_is_told_before_in_many(tmp_path: Path) -> None:
    told(range(SEED, SEED + LONG), tmp_path)


def told(seeds: range, folder: Path) -> Counter[Told]:
    totals = Counter[Told]()
    for seed in seeds:
        path = folder / f"structure_{seed}.py"
        path.write_text(program(seed), encoding="utf-8")
        told = told_of(path)
        assert told in (Told.EARLY, Told.LATE, Told.HEALTHY), f"{seed}: {told.value}"
        totals[told] += 1
    return totals
