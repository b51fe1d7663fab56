"""Runs some tests in one way in this process, and tells of each as it begins and ends."""

from __future__ import annotations

import gc
import time
import unittest
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager as Context
from contextlib import ExitStack, nullcontext, suppress
from typing import Any, TypeAlias

import torch

import gradscope
from tests.oracles.conformance.engine import Engine
from tests.oracles.conformance.records import Ran, Way

_Error: TypeAlias = Any  # unittest's triple of an exception


class Result(unittest.TestResult):
    """Keeps the first thing that went otherwise than well."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome, self.detail = "", ""

    def _keep(self, outcome: str, error: _Error = None) -> None:
        if self.outcome in ("", "pass"):
            self.outcome = outcome
            self.detail = "" if error is None else f"{error[0].__name__}: {error[1]}"[:1000]

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - the name is unittest's
        super().addSuccess(test)
        self._keep("pass")

    def addError(self, test: Any, err: _Error) -> None:  # noqa: N802
        super().addError(test, err)
        self._keep("error", err)

    def addFailure(self, test: Any, err: _Error) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._keep("fail", err)

    def addSubTest(self, test: Any, subtest: Any, err: _Error) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._keep("fail", err)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._keep("skip")

    def addExpectedFailure(self, test: Any, err: _Error) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self._keep("expected failure", err)

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self._keep("unexpected success")


def run(
    cases: Mapping[str, unittest.TestCase],
    names: Sequence[str],
    way: Way,
    begins: Callable[[str], None],
    ends: Callable[[Ran], None],
) -> None:
    """Run the tests of these names; call ``begins`` before each and ``ends`` after it."""

    def watch(wanted: bool) -> Context[Any]:
        return gradscope.watch(hooks=way.hooks) if way.watched and wanted else nullcontext()

    _warm_up(way)
    gc.freeze()
    engine = Engine()
    with ExitStack() as stack:
        stack.enter_context(engine.in_force())
        stack.enter_context(watch(way.one_watch))
        for name in names:
            begins(name)
            engine.raised, engine.wrong, engine.failures = [], [], []
            result = Result()
            started = time.process_time()
            with watch(not way.one_watch):
                unittest.TestSuite([cases[name]]).run(result)
            cpu = time.process_time() - started
            ends(
                Ran(
                    name,
                    result.outcome or "nothing",
                    result.detail,
                    cpu,
                    engine.raised,
                    engine.wrong,
                    engine.failures,
                )
            )
        engine.failures = []
    if engine.failures:
        ends(Ran("the end of the watch", "pass", failures=engine.failures))


def _warm_up(way: Way) -> None:
    """Have everything imported that the first finding of a process needs, so that no test pays."""
    with gradscope.watch(hooks=way.hooks) if way.watched else nullcontext():
        x = torch.ones(2, requires_grad=True)
        for loss in (x.exp().sum(), x.exp().mul_(2).sum()):
            with suppress(RuntimeError):
                loss.backward()
                loss.backward()
