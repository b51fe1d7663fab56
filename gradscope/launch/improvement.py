"""Improves the fixes of a run that has ended, in a process that imports torch once for all tries.

It runs this module, reads the pickled recording and the seconds from a file, and writes the
recording to another one.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gradscope.errors import GradscopeError
from gradscope.model import Recording

if TYPE_CHECKING:
    from gradscope.fixing.rehearsal import Record

_POLL = 0.01  # seconds
_PACKAGES = str(Path(__file__).resolve().parents[2])


def untried(recording: Recording, why: str) -> Recording:
    """Return the recording with why no fix of its hazards was tried."""
    findings = (
        replace(each, untried=f"not tried: {why}") if each.is_to_mend else each
        for each in recording.findings
    )
    return replace(recording, findings=tuple(findings))


def improved(
    recording: Recording, seconds: float, tell: Callable[[str], None], *, guarded: bool = True
) -> tuple[Recording, Record | None]:
    """Return the recording with fixes that were rehearsed and tried within so many seconds, and
    what the rehearsal has shown; if that fails, as where the program cannot be run again, with the
    reason. ``guarded``: the runs end before they would change a file.

    Nothing of it is imported here, into the user's process.
    """
    why = "no folder can be made for the runs"
    with suppress(OSError, ValueError), tempfile.TemporaryDirectory(prefix="gradscope-") as folder:
        given, made, said = (Path(folder, name) for name in ("given", "made", "said"))
        given.write_bytes(pickle.dumps((recording, seconds, guarded)))
        with (
            said.open("wb") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "gradscope.launch.improvement", str(given), str(made)],
                env={**os.environ, "PYTHONPATH": _PACKAGES, "PYTHONSAFEPATH": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                tell(line.rstrip())
        if process.returncode == 0:
            return pickle.loads(made.read_bytes())  # type: ignore[no-any-return]
        last = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        why = next(iter(last), f"status {process.returncode}")
        tell(f"the search for a fix failed in gradscope, please report it: {why}")
    return untried(recording, why), None


class ForkedProcess:
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


def started(
    module: str, job: Path, folder: str, environment: dict[str, str], output: Any
) -> ForkedProcess:
    """Have a module of ``launch`` do a job in a copy of this process."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        _do(module, job, folder, environment, output)
    return ForkedProcess(pid)


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
    from gradscope.fixing import ranking
    from gradscope.launch import origins, rehearsing, trial  # noqa: F401 - once, for all copies

    with suppress(Exception):  # what torch imports with the first optimizer takes seconds
        importlib.import_module("torch._dynamo")
    recording, seconds, guarded = pickle.loads(Path(given).read_bytes())
    how = [started] if hasattr(os, "fork") else []
    tell = partial(print, flush=True)
    try:
        better = ranking.improved(recording, seconds, tell, *how, guarded=guarded)
    except GradscopeError as failure:
        better = untried(recording, str(failure)), None
    Path(improved_file).write_bytes(pickle.dumps(better))


if __name__ == "__main__":
    main(*sys.argv[1:])
