"""Tests on the simulated device; they are skipped, with the reason, where it cannot be built."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import traceback
from collections.abc import Callable

import pytest

from tests import device

TIMEOUT = 120  # seconds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = device.missing()
    if reason is not None:
        for item in items:
            if "tests/device" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=reason))


def _in_fork(work: Callable[[], None], devices: int = 1) -> None:
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


@pytest.fixture
def on_device() -> Callable[..., None]:
    """Return what calls a function in a process with the device, and fails where that raises."""
    return _in_fork
