"""Runs shards of a file's tests in forks, each test bounded: one that kills its process or hangs is
told, and the rest go on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tests.oracles.conformance.records import Ran, Way
from tests.oracles.conformance.shard import run


@dataclass
class _Fork:
    """A process that runs tests, and what it has told so far."""

    way: Way
    left: list[str]
    process: int
    pipe: int
    running: str = ""
    since: float = field(default_factory=time.monotonic)
    unread: bytes = b""


class Forks:
    """Runs tests in forks of this process, which has loaded them: ``jobs`` at a time."""

    def __init__(
        self,
        cases: Mapping[str, unittest.TestCase],
        tell: Callable[[Way, Ran], None],
        *,
        jobs: int,
        bound: float,
        log: str,
    ) -> None:
        self._cases = cases
        self._tell = tell
        self._jobs = jobs
        self._bound = bound
        self._log = log
        self._running: dict[int, _Fork] = {}

    def run(self, shards: Iterable[tuple[Way, Sequence[str]]]) -> None:
        """Run all shards; ``tell`` is called with each test when it has ended."""
        waiting = [(way, list(names)) for way, names in shards]
        waiting.reverse()
        while waiting or self._running:
            while waiting and len(self._running) < self._jobs:
                self._start(*waiting.pop())
            ready, _, _ = select.select(list(self._running), [], [], 0.5)
            for pipe in ready:
                self._read(self._running[pipe])
            for fork in tuple(self._running.values()):
                if time.monotonic() - fork.since > self._bound:
                    with contextlib.suppress(ProcessLookupError):  # with those that it started
                        os.kill(fork.process, signal.SIGABRT)
                        time.sleep(0.1)
                        os.killpg(fork.process, signal.SIGKILL)
                    self._end(fork, "hang", f"no end within {self._bound:g} s")

    def _start(self, way: Way, names: list[str]) -> None:
        read, write = os.pipe()
        process = os.fork()
        if not process:
            os.close(read)
            self._be(way, names, write)
        os.close(write)
        self._running[read] = _Fork(way, names, process, read)

    def _be(self, way: Way, names: list[str], pipe: int) -> NoReturn:
        """Be the process that runs the tests."""
        status = 1
        try:
            os.setpgid(0, 0)
            for stream, path, flags in (
                (0, os.devnull, os.O_RDONLY),
                (1, self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
                (2, self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
            ):
                os.dup2(os.open(path, flags, 0o644), stream)
            # A test that hangs leaves its stack in the log: SIGABRT comes before SIGKILL.
            faulthandler.enable(file=2)
            with tempfile.TemporaryDirectory(prefix="conformance") as folder:
                os.chdir(folder)
                run(
                    self._cases,
                    names,
                    way,
                    begins=lambda name: _write(pipe, {"begin": name}),
                    ends=lambda ran: _write(pipe, ran.as_data()),
                )
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _read(self, fork: _Fork) -> None:
        chunk = os.read(fork.pipe, 1 << 16)
        if not chunk:
            self._end(fork)
            return
        *lines, fork.unread = (fork.unread + chunk).split(b"\n")
        for line in lines:
            told = json.loads(line)
            fork.since = time.monotonic()
            if "begin" in told:
                fork.running = told["begin"]
            else:
                self._keep(fork, Ran.of(told))

    def _keep(self, fork: _Fork, ran: Ran) -> None:
        fork.running = ""
        self._tell(fork.way, ran)
        if ran.name in fork.left:
            fork.left = fork.left[fork.left.index(ran.name) + 1 :]

    def _end(self, fork: _Fork, outcome: str = "crash", why: str = "") -> None:
        """Take note that a process has ended; begin another for the tests that it left."""
        del self._running[fork.pipe]
        os.close(fork.pipe)
        _, status = os.waitpid(fork.process, 0)
        code = os.waitstatus_to_exitcode(status)
        if not why and code == 0:
            return
        why = why or (signal.Signals(-code).name if code < 0 else f"exit status {code}")
        if fork.running:
            self._keep(fork, Ran(fork.running, outcome, why))
        elif fork.left:  # it ended between two tests: the next one would meet the same again
            self._keep(fork, Ran(fork.left[0], outcome, f"before it began: {why}"))
        if fork.left:
            self._start(fork.way, fork.left)


def _write(pipe: int, told: dict[str, Any]) -> None:
    data = json.dumps(told).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]
