"""Calls what a test does in a process with the simulated device."""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from tests import device

Test = Callable[..., None]
TIMEOUT = 120  # seconds


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
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.disable()  # a program that dies here is the test's to tell
                signal.alarm(TIMEOUT)
                device.load(devices)
                work()
                status = 0
            except BaseException:
                traceback.print_exc(file=errors)
                errors.flush()
            finally:
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        errors.seek(0)
        assert status == 0, errors.read() or f"it ended with {status}"
