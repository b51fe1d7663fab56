"""What a run of a program showed of its training: which losses trained which parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias


class Line(NamedTuple):
    """A place in the program's code, and the places that called it, innermost first: a function
    that runs any loss backward is another line for each of its callers.
    """

    file: str
    number: int
    via: tuple[tuple[str, int], ...] = ()


Key: TypeAlias = tuple[int, int, int]
"""A parameter: its optimizer, its group there, its position in the group.

The same in two runs of a program. Leaves that no optimizer holds have the optimizer -1.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One backward call; ``value`` is what it started from, if that was a single number.

    ``reached`` are the parameters that a failed call would have given gradient to, and those of a
    program without optimizers.
    """

    number: int
    line: Line
    accumulates: bool
    value: float | None
    failed: bool
    reached: frozenset[Key]
    at: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an optimizer: the calls by which each gradient that it used was made.

    A negative number stands for a call that reaches the parameter only through a state carried from
    one of its runs to the next: a program cannot have had this training for long.
    ``after`` is the number of the last backward call before it, ``sizes`` are the norms of the
    gradients in the first steps.
    """

    optimizer: int
    line: Line
    after: int
    calls: Mapping[Key, tuple[int, ...]]
    sizes: Mapping[Key, float]


@dataclass(frozen=True)
class Training:
    """All calls and steps of a run, the names of the parameters, the classes of the optimizers."""

    calls: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()
    names: Mapping[Key, str] = field(default_factory=dict)
    parameters: frozenset[Key] = frozenset()
    optimizers: tuple[str, ...] = ()

    @cached_property
    def by_number(self) -> dict[int, Call]:
        """The calls by their numbers."""
        return {call.number: call for call in self.calls}

    @property
    def failed(self) -> Call | None:
        """The call that failed, if it ended the run."""
        return self.calls[-1] if self.calls and self.calls[-1].failed else None

    @property
    def steps_made(self) -> int:
        """How often the line was run that made most calls."""
        return len(self._ends)

    @cached_property
    def _ends(self) -> list[float]:
        ends: dict[Line, list[float]] = {}
        for call in self.calls:
            ends.setdefault(call.line, []).append(call.at)
        return max(ends.values(), key=len, default=[])

    def seconds_of_a_step(self, first: int | None = None) -> float | None:
        """Return the median time from one call of a line to its next, all that the program does
        between included: of the line that is called most, or its ``first`` calls, without the very
        first one if others are left.
        """
        ends = self._ends[:first]
        settled = ends[1:] if len(ends) > 2 else ends
        times = sorted(later - earlier for earlier, later in pairwise(settled))
        return times[len(times) // 2] if times else None

    def steps_of(self, optimizer: int) -> list[Step]:
        """Return the steps of one optimizer."""
        return [step for step in self.steps if step.optimizer == optimizer]

    def homes(self) -> dict[Line, set[int]]:
        """Return for each line of a call the optimizers that step next after it."""
        homes: dict[Line, set[int]] = {}
        stepping: dict[int, set[int]] = {}
        for step in self.steps:
            stepping.setdefault(step.after, set()).add(step.optimizer)
        waiting: list[Line] = []
        for call in self.calls:
            waiting.append(call.line)
            if call.number in stepping:
                for line in waiting:
                    homes.setdefault(line, set()).update(stepping[call.number])
                waiting = []
        return homes


def read_training(file: Path) -> Training:
    """Return what a run has noted, up to where it was killed; nothing where there is no file."""
    rows: list[list[Any]] = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
    keys: dict[int, Key] = {}
    names: dict[Key, str] = {}
    optimizers: list[str] = []
    calls: list[Call] = []
    steps: list[Step] = []
    for kind, *row in rows:
        match kind:
            case "optimizer":
                optimizers.append(row[1])
            case "parameter":
                keys[row[0]] = row[1], row[2], row[3]
            case "name":
                names[keys[row[0]]] = row[1]
            case "call":
                calls.append(_call(row, keys))
            case "step":
                steps.append(_step(row, keys))
    return Training(tuple(calls), tuple(steps), names, frozenset(keys.values()), tuple(optimizers))


def _call(row: list[Any], keys: Mapping[int, Key]) -> Call:
    number, line, accumulates, value, failed, reached, at = row
    where = frozenset(keys[one] for one in reached)
    return Call(number, _line(line), accumulates, value, failed, where, at)


def _step(row: list[Any], keys: Mapping[int, Key]) -> Step:
    optimizer, line, after, by_calls, sizes = row
    calls = {keys[one]: tuple(numbers) for numbers, ones in by_calls for one in ones}
    return Step(optimizer, _line(line), after, calls, {keys[one]: size for one, size in sizes})


def _line(places: list[list[Any]]) -> Line:
    (file, number), *via = places or [["", 0]]
    return Line(file, number, tuple((file, number) for file, number in via))
