"""Runs random programs on the CPU and on the simulated device, many in one process, and compares what came of them.

``python -m tests.device.side_by_side FIRST COUNT`` compares these programs and prints each difference.

What reads the program ahead, or watches its lines, is off: it takes nine tenths of the time, and would judge the loop of
the machine that runs the steps. The annotated programs compare that (``running.py``). No scan is left out by the clock.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor

import gradscope
from gradscope.api import scope as scopes
from gradscope.collect import facts
from gradscope.collect.observers import Observer
from gradscope.detect import growth
from gradscope.model import BackwardCall, Finding
from gradscope.render.machine import to_json
from tests import device
from tests.device.running import Comparison, judged
from tests.forked import TIMEOUT, returned_by_fork
from tests.property.agreement import Comparison as Agreement
from tests.property.agreement import comparable
from tests.property.programs import Outcome, Program, random_program, run

BATCH = 100
UNSUPPORTED = ("nested_strided", "nested_jagged")
"""Steps whose operators the simulated device lacks."""
Ran = dict[str, Any]
"""Of one program on one side: the outcomes ``plain`` and ``watched``, whether two plain runs are alike (``steady``),
where gradscope and the engine disagree (``faults``), and the ``report``.
"""


def program_of(seed: int) -> Program:
    """Return a program; every fourth may have steps of which the reports cannot be compared."""
    out = (*UNSUPPORTED, *OTHERWISE) if seed % 4 else UNSUPPORTED
    return [s for s in random_program(seed) if s[0].rpartition(":")[2] not in out]


OTHERWISE = ("two_threads", "lstm_cell", "attention")


def raised(_: Program, on_device: Ran) -> bool:
    return any(is_backward and error for _, _, is_backward, error, *_ in on_device["plain"])


def nests(_: Program, on_device: Ran) -> bool:
    return any(call["parent"] for call in on_device["report"]["calls"])


def having(*steps: str) -> Callable[[Program, Ran], bool]:
    return lambda program, _: any(step in name for name, *_ in program for step in steps)


REASONS: tuple[tuple[Callable[[Program, Ran], bool], str, str], ...] = (
    (
        having(*OTHERWISE),
        r".*",
        "two threads take turns otherwise each time; off the CPU torch chooses other operators",
    ),
    (
        raised,
        r".*",
        "the engine runs a device's nodes in another order, so a call that fails has run and freed others;"
        " and on the CPU torch keeps the graph of a call in which an unpack hook raised",
    ),
    (
        having("save_on_cpu", "hooks_in_hooks"),
        r"\.(summary|calls\[\d+\])\.(\w+_bytes|dropped_tensors)",
        "on the CPU save_on_cpu keeps the very tensor, which others hold too; off it, a copy",
    ),
    (
        nests,
        r"\.calls\[\d+\]\.(live|peak)_bytes|\.summary\.peak_saved_bytes",
        "the engine runs nodes by their numbers, and a device's thread numbers those that it builds from zero:"
        " when a call within the call begins, others have run",
    ),
    (
        having("thread:", "worker:", "in_a_thread"),
        r"\.memory\.by_.*",
        "memory that several nodes saved is told of the first, and nodes of several threads have no order",
    ),
    (
        having(""),
        r"\.calls\[\d+\]\.oldest_generation",
        "which of several threads has built a node that saved nothing is told by its neighbours, not always rightly"
        " (one program in a hundred)",
    ),
)
"""Of which programs what may differ beside the findings, and why."""


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Stand in for torch's, for which it chooses another operator off the CPU."""
    return x * (torch.rand_like(x, dtype=torch.float32) > p) / (1 - p)


class Idle(Observer):
    """Stands for an observer that is off."""

    def __init__(self, *_: object) -> None:
        """Take what an observer is made from."""


def ran(program: Program) -> Ran:
    """Run a program plain and watched, each in a separate fork, where the engine's threads number their nodes from zero,
    too; once more plain where that differs.
    """

    def plainly() -> list[list[Any]]:
        return told(run(program))

    found = returned_by_fork(partial(watched, program))
    plain = returned_by_fork(plainly)
    steady = plain == found["watched"] or plain == returned_by_fork(plainly)
    return {"plain": plain, "steady": steady, **found}


def watched(program: Program) -> Ran:
    """Run a program in a watch, here and now."""
    agreement, said, ended = Agreement(), list[Finding](), list[BackwardCall]()
    report_to = scopes.Session.report

    def note(session: Any, finding: Finding) -> None:
        said.append(finding)
        report_to(session, finding)

    def step_of(step: Callable[[], Outcome]) -> Outcome:
        said.clear()
        ended.clear()
        outcome = step()
        agreement.meet(outcome, said, len(ended), hooks=True)
        return outcome

    with (
        mock.patch.object(scopes.Session, "report", note),
        gradscope.watch(on_call=ended.append, settings=False) as scope,
    ):
        gc.disable()  # what cycles hold is let go of at the end, on both sides
        outcomes = told(run(program, step_of))
        gc.collect()
    return {
        "watched": outcomes,
        "faults": list(agreement.faults()),
        "report": json.loads(to_json(scope.recording())),
    }


def told(outcomes: Sequence[Outcome]) -> list[list[Any]]:
    """Return outcomes as JSON would give them back."""
    found: list[list[Any]] = json.loads(
        json.dumps([[*asdict(comparable(o)).values()] for o in outcomes])
    )
    return found


def run_all(seeds: range, where: str) -> Iterator[Ran | None]:
    """Yield what came of each program, None of one that ends its process."""
    if where == "sim":
        device.library()
    for first in range(0, len(seeds), BATCH):
        yield from returned_by_fork(partial(_run_here, seeds[first : first + BATCH], where))


def _run_here(seeds: range, where: str) -> list[Ran | None]:
    if where == "sim":
        device.load()
    device.make_on(where)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    lines_off = frozenset({facts.Part.LINES})
    found: list[Ran | None] = []
    with (
        mock.patch.object(facts, "parts_off", return_value=lines_off),
        mock.patch.object(F, "dropout", dropout),
        mock.patch.multiple(scopes, Foresight=Idle, InPlace=Idle, FreedWatch=Idle),
        mock.patch.object(growth, "_FREE_SCANS", inf),
    ):
        for seed in seeds:
            signal.alarm(TIMEOUT)
            try:
                found.append(ran(program_of(seed)))
            except AssertionError:
                found.append(None)
    return found


def compare(program: Program, on_cpu: Ran | None, on_device: Ran | None) -> Comparison | str:
    """Compare what came of one program on the two sides; say why where that cannot be done."""
    if on_cpu is None or on_device is None:
        return "it ends its process"
    faults = [("fault", text) for text in on_device["faults"] if text not in on_cpu["faults"]]
    changed = [
        (f"step {one[0]}", f"{one} / {other}")
        for one, other in zip(on_device["plain"], on_device["watched"], strict=True)
        if on_device["steady"] and one != other
    ]
    if changed or faults:
        return Comparison(changed, faults, [], [])
    if not on_device["steady"]:
        return "it runs otherwise a second time"
    if _errors(on_cpu["plain"]) != _errors(on_device["plain"]):
        return "it runs otherwise on a device"
    findings, *others = judged(on_cpu["report"], on_device["report"])
    known = [pattern for applies, pattern, _ in REASONS if applies(program, on_device)]
    details, tables = (
        [d for d in found if not any(re.fullmatch(pattern, d[0]) for pattern in known)]
        for found in others
    )
    return Comparison([], findings, details, tables)


def _errors(outcomes: list[list[Any]]) -> list[tuple[str, str]]:
    """Return what each step did, and its error without the names of devices."""
    device = r"torch\.(cuda\.)?(?=\w+Tensor \[)|Tensor(?= \[)|(?<=\w)Type(?= \[)"
    device += r"|cpu|(sim|cuda)(:0)?|CPU|CUDA"
    return [(text, re.sub(device, "", error or "")) for _, text, _, error, *_ in outcomes]


def differing(seeds: range, other: str = "sim") -> Iterator[tuple[int, Comparison | str]]:
    """Yield each program on which the CPU and another device differ for no known reason."""
    sides = [run_all(seeds, where) for where in ("cpu", other)]
    for seed, on_cpu, on_device in zip(seeds, *sides, strict=True):
        comparison = compare(program_of(seed), on_cpu, on_device)
        if isinstance(comparison, str) or comparison.verdict != "equal":
            yield seed, comparison


def main(first: int, count: int) -> None:
    """Compare programs, and print what differs."""
    counted = Counter[str]()
    for seed, comparison in differing(range(first, first + count)):
        sort = comparison if isinstance(comparison, str) else comparison.verdict
        counted[sort] += 1
        print(f"{seed}: {sort}", flush=True)
        if isinstance(comparison, Comparison):
            for which in ("changed", "findings", "details", "tables"):
                for path, text in getattr(comparison, which):
                    print(f"    {which} {path}: {text[:300]}")
    print(f"{count} programs, of which differ: {dict(counted)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
