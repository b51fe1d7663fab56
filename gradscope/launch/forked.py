"""Improves the fixes of a run in a process of its own, which imports torch once for all tries.

Run as a module; it reads the pickled recording and the seconds from a file, and writes the
recording to another one.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

_POLL = 0.01  # seconds


class Fork:
    """A forked process, to be waited for as one of ``subprocess``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise TimeoutExpired if there is none after so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            time.sleep(_POLL)
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal."""
        os.kill(self.pid, sig)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def started(module: str, job: Path, folder: str, environment: dict[str, str], output: Any) -> Fork:
    """Have a module of ``launch`` do a job in a copy of this process."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        _do(module, job, folder, environment, output)
    return Fork(pid)


def _do(module: str, job: Path, folder: str, environment: dict[str, str], output: Any) -> NoReturn:
    status = 1
    try:
        atexit._clear()  # what this process does at its end is not the program's
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        status = importlib.import_module(f"gradscope.launch.{module}").main(str(job))
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # the parent's frames are below: nothing may reach them
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def main(given: str, improved_file: str) -> None:
    """Improve the fixes of the pickled recording."""
    from gradscope.fixing.improving import improved
    from gradscope.launch import rehearsing, trial  # noqa: F401 - once, for all copies

    recording, seconds = pickle.loads(Path(given).read_bytes())
    better = improved(recording, seconds, partial(print, flush=True), started)
    Path(improved_file).write_bytes(pickle.dumps(better))


if __name__ == "__main__":
    main(*sys.argv[1:])
