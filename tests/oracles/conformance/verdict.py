"""Compares how the tests of a file went plain and watched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.oracles.conformance.known import INHERENT, UNWATCHED
from tests.oracles.conformance.records import AGAIN, PLAIN, WATCHED, WAYS, FileRun, Ran


@dataclass
class Verdict:
    """One file in one way against the file run plain; each list has a line for each test."""

    file: str
    way: str
    tests: int = 0
    changed: list[str] = field(default_factory=list)
    worded: list[str] = field(default_factory=list)
    """Tests that fail in both, with another text."""
    inherent: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    raised: int = 0
    unannounced: list[str] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    cpu: float = 0.0
    plain_cpu: float = 0.0

    @property
    def ratio(self) -> float:
        """CPU time watched over CPU time plain, of the tests that ran to their end in both."""
        return self.cpu / self.plain_cpu if self.plain_cpu else 1.0

    @property
    def is_good(self) -> bool:
        """Whether nothing changed, nothing was missed, nothing was wrong and nothing of gradscope failed."""
        return not (self.changed or self.unannounced or self.wrong or self.failures)


def verdicts(run: FileRun) -> Iterator[Verdict]:
    """Yield the verdict on each way in which a file was run watched."""
    plain, again = run.ran.get(PLAIN.name, {}), run.ran.get(AGAIN.name, {})
    for way in WATCHED:
        if way.name in run.ran:
            verdict = Verdict(run.file, way.name)
            for name, ran in run.ran[way.name].items():
                _judge(verdict, ran, plain.get(name), again.get(name))
            yield verdict


def _judge(verdict: Verdict, ran: Ran, plain: Ran | None, again: Ran | None) -> None:
    name = ran.name
    verdict.tests += plain is not None
    if plain is not None and (plain.outcome != ran.outcome or _text(plain) != _text(ran)):
        text = f"{name}: {_said(plain)} plain, {_said(ran)} watched"
        reason = INHERENT.get((name, WAYS[verdict.way].hooks))
        if reason is not None:
            verdict.inherent.append(f"{text}: {reason}")
        elif again is not None and (plain.outcome, _text(plain)) != (again.outcome, _text(again)):
            verdict.unsteady.append(text)
        elif plain.outcome == ran.outcome:
            verdict.worded.append(text)
        else:
            verdict.changed.append(text)
    elif plain is not None:
        verdict.cpu += ran.cpu
        verdict.plain_cpu += plain.cpu
    verdict.raised += len(ran.raised)
    missed = [f"{name}: {each.code} {each.text}" for each in ran.raised if not each.announced]
    if name in UNWATCHED:
        verdict.unwatched += [f"{each}: {UNWATCHED[name]}" for each in missed]
    else:
        verdict.unannounced += missed
    verdict.wrong += [f"{name}: {each}" for each in ran.wrong]
    verdict.failures += [f"{name}: {each}" for each in ran.failures]


def _said(ran: Ran) -> str:
    return f"{ran.outcome} ({ran.detail})" if ran.detail else ran.outcome


def _text(ran: Ran) -> str:
    """Return what a test failed with, without numbers and addresses that differ in each run."""
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e-?\d+)?", "0", ran.detail)
