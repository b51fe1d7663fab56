"""Hands each test of a fault its tries, and writes at the end what came of them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.faults.tries import Tries, write_records


@pytest.fixture
def tries(request: pytest.FixtureRequest) -> Iterator[Tries]:
    fault, times = request.param
    made = Tries(fault, times)
    yield made
    failed = request.node.stash.get(FAILED, True)
    if not failed:
        made.finish()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.outcome != "passed"
    return report


def pytest_sessionfinish() -> None:
    write_records()
