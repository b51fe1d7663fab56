"""Calls what a test does in a fork of its process."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable
from typing import TypeVar

TIMEOUT = 120  # seconds

T = TypeVar("T")


def in_fork(work: Callable[[], object]) -> None:
    """Call ``work`` in a fork, and raise AssertionError where that raises or ends its process."""
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.disable()  # a program that dies here is the test's to tell
                signal.alarm(TIMEOUT)
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


def returned_by_fork(work: Callable[[], T]) -> T:
    """Call ``work`` in a fork, and return what it returns; raise AssertionError as ``in_fork`` does."""
    with tempfile.TemporaryFile() as file:

        def note() -> None:
            pickle.dump(work(), file)
            file.flush()

        in_fork(note)
        file.seek(0)
        returned: T = pickle.load(file)
        return returned
