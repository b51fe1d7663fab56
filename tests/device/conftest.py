"""Tests on the simulated device; they are skipped, with the reason, where it cannot be built.

The engine of a process starts its threads with the first backward call, and then takes no further device: so each test
runs in a separate process, in which no other test has made one.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests import device
from tests.zygote import python

OWN_PROCESS = "GRADSCOPE_TEST_ON_A_DEVICE"
"""This variable is set where a test runs in the process that is its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = device.missing()
    if reason is not None:
        for item in items:
            if "tests/device" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of this folder in a separate process; its end is the test's."""
    if os.environ.get(OWN_PROCESS):
        return None
    marks = pyfuncitem.config.getoption("markexpr")
    options = ("-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks)
    done = subprocess.run(
        [python(), "-m", "pytest", *options, pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env=os.environ | {OWN_PROCESS: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if found := re.search(r"^(SKIPPED|XFAIL) .*?(?: - |: )(.*)$", done.stdout, re.MULTILINE):
        (pytest.skip if found.group(1) == "SKIPPED" else pytest.xfail)(found.group(2))
    assert done.returncode == 0, done.stdout + done.stderr
    return True
