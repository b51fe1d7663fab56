"""How often a fault is tried, and what came of it: the records that docs/reliability.md shows."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

RECORDS = Path(__file__).with_name("records.json")
"""What the last long run has written; ``python docs/make_reliability.py`` has it written anew."""

WRITE = "GRADSCOPE_FAULT_RECORDS"
"""The environment variable that names the file which a run of the tests writes."""

BROKEN = "What gradscope relies on, and gradscope itself"
GROUPS = ("The process", "The program", "The watch", BROKEN, "The recording", "What is shown")

tried: dict[str, Tries] = {}
"""What this run has tried and found to hold."""


@dataclass(frozen=True)
class Fault:
    """``what`` goes wrong, and what is promised then."""

    group: str
    what: str
    promise: str
    few: int
    many: int


@dataclass
class Tries:
    """The tries of one fault: iterate over them, and say of each what came of it."""

    fault: Fault
    times: int
    begun: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[random.Random]:
        """Each try has other random numbers; the same in every run."""
        for number in range(self.times):
            self.begun += 1
            yield random.Random(number)

    def came(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def finish(self) -> None:
        assert sum(self.outcomes.values()) == self.begun == self.times
        tried[self.fault.what] = self


faults: dict[str, Fault] = {}


def fault(
    group: str, what: str, promise: str, *, few: int, many: int
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test that tries a fault: a ``few`` times, and ``many`` in the long run."""
    assert group in GROUPS
    one = faults[what] = Fault(group, what, promise, few, many)

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        params = [
            pytest.param((one, few), id="few"),
            pytest.param((one, many), id="many", marks=pytest.mark.long),
        ]
        marked: Callable[..., None] = pytest.mark.parametrize("tries", params, indirect=True)(test)
        return marked

    return mark


def declare(group: str, what: str, promise: str) -> Fault:
    """Return a fault that one test tries in its own way, and notes with ``held``."""
    assert group in GROUPS
    one = faults[what] = Fault(group, what, promise, 1, 1)
    return one


def held(one: Fault, *outcomes: str) -> None:
    """Note what came of a fault that was declared, once for each try."""
    tries = Tries(one, len(outcomes))
    for _, outcome in zip(tries, outcomes, strict=True):
        tries.came(outcome)
    tries.finish()


def records(found: dict[str, Tries]) -> list[dict[str, Any]]:
    return [
        {
            "group": one.fault.group,
            "fault": what,
            "promise": one.fault.promise,
            "tried": one.begun,
            "outcomes": dict(sorted(one.outcomes.items(), key=lambda item: (-item[1], item[0]))),
        }
        for what, one in sorted(
            found.items(), key=lambda item: (GROUPS.index(item[1].fault.group), item[0])
        )
    ]


def write_records() -> None:
    """Write what held, where the environment asks for it; what was not tried now stays."""
    file = os.environ.get(WRITE)
    if not file or not tried:
        return
    path = Path(file)
    kept = json.loads(path.read_text("utf-8")) if path.exists() else []
    found = [one for one in kept if one["fault"] not in tried] + records(tried)
    found.sort(key=lambda one: (GROUPS.index(one["group"]), one["fault"]))
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
