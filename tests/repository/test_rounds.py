"""The quick round takes what is not marked, and of what is marked as many cases as the mark says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rounds import chosen, is_quick

ROOT = Path(__file__).parents[2]
FULL = pytest.mark.full.mark


@dataclass(eq=False)
class Case:
    """What a collected test is asked for."""

    nodeid: str
    get_closest_marker: Callable[[str], pytest.Mark | None]


def case(name: str, *marks: pytest.Mark) -> Any:
    named = {mark.name: mark for mark in marks}
    return Case(nodeid=f"tests/test_a.py::{name}", get_closest_marker=named.get)


CASES: list[Any] = [
    case("test_unmarked[0]"),
    case("test_unmarked[1]"),
    *(case(f"test_some[{i}]", pytest.mark.full(but=3).mark) for i in range(7)),
    *(case(f"test_few[{i}]", pytest.mark.full(but=3).mark) for i in range(2)),
    case("test_rounds[fixed]", FULL),
    case("test_rounds[fresh]"),
    case("test_rounds[long]", FULL, pytest.mark.long.mark),
    case("test_left", FULL),
    case("test_framework", pytest.mark.frameworks.mark),
]


def names(items: list[Any]) -> list[str]:
    return [item.nodeid.rpartition("::test_")[2] for item in items]


def test_the_quick_round_takes_some_cases_evenly_spread() -> None:
    taken = names(chosen(CASES, quick=True, markers=""))
    some = ["some[0]", "some[2]", "some[4]"]
    assert taken == ["unmarked[0]", "unmarked[1]", *some, "few[0]", "few[1]", "rounds[fresh]"]


def test_the_full_round_takes_all_but_what_is_asked_for_by_name() -> None:
    assert names(chosen(CASES, quick=False, markers="")) == [
        name for name in names(CASES) if name not in ("rounds[long]", "framework")
    ]
    assert "rounds[long]" in names(chosen(CASES, quick=False, markers="long"))


def test_the_quick_round_and_the_rest_are_all() -> None:
    quick = chosen(CASES, quick=True, markers="")
    rest = chosen(CASES, quick=False, markers="", rest=True)
    assert names(rest) == ["some[1]", "some[3]", "some[5]", "some[6]", "rounds[fixed]", "left"]
    assert {*quick, *rest} == {*chosen(CASES, quick=False, markers="")}


@pytest.mark.parametrize(
    ("given", "quick"),
    [
        ({}, True),
        ({"args": ["."]}, True),
        ({"full": True}, False),
        ({"markexpr": "browser"}, False),
        ({"keyword": "leaks"}, False),
        ({"args": ["tests/unit"]}, False),
        ({"args": ["tests/rules/test_leaks.py::test_a"]}, False),
    ],
)
def test_who_names_something_gets_all_of_it(given: dict[str, Any], quick: bool) -> None:
    options = {"full": False, "markexpr": "", "keyword": ""} | given
    config: Any = SimpleNamespace(
        option=SimpleNamespace(**options),
        args=given.get("args", ["tests"]),
        rootpath=ROOT,
        invocation_params=SimpleNamespace(dir=ROOT),
    )
    assert is_quick(config) == quick
