"""Calls what a test does in a process with the simulated device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests import device, forked

Test = Callable[..., None]


def on_device(devices: int = 1) -> Callable[[Test], Test]:
    """Make a test run in such a process; it fails where that raises."""

    def made(test: Test) -> Test:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            in_fork(lambda: test(**given), devices)

        return run

    return made


def in_fork(work: Callable[[], None], devices: int = 1) -> None:
    """Call ``work`` in a fork that has the device: its engine has not begun yet."""
    device.library()

    def on_it() -> None:
        device.load(devices)
        work()

    forked.in_fork(on_it)
