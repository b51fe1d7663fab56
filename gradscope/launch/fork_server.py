"""Reruns a program to try out fixes, each time in a fork of one process, the workshop, which has
imported torch once.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import pkgutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gradscope.errors import GradscopeError
from gradscope.model import Recording

if TYPE_CHECKING:
    from gradscope.fixing.rehearsal import Trace
    from gradscope.fixing.runs import ChildProcess

_PACKAGES = str(Path(__file__).resolve().parents[2])
_START = """\
import sys
sys.path[: not sys.flags.safe_path] = [{0!r}]
from gradscope.launch.fork_server import serve
serve({1!r})
"""
"""In the place of the first folder of ``sys.path``, where the program's own comes next."""
_FAILED = "the search for a fix failed in gradscope, please report it"
_COMPILER = "torch._dynamo"
"""What torch imports with the first optimizer takes as long as torch itself."""
_PARTS = ("api.watch", "launch.guard", "launch.origins_run", "launch.rehearsal_run", "launch.trial")
"""What the copies need, imported once for all of them."""


def untried(recording: Recording, why: str) -> Recording:
    """Return the recording with why no fix of its hazards was tried."""
    findings = (
        replace(each, untried=f"not tried: {why}") if each.is_to_mend else each
        for each in recording.findings
    )
    return replace(recording, findings=tuple(findings))


class Workshop:
    """A process that does what it is asked, and copies itself for each run of a program.

    ``tell`` is called with what begins, ``modules`` are those that the program is known to import.
    """

    def __init__(self, tell: Callable[[str], None], modules: Container[str] = (_COMPILER,)) -> None:
        self.tell = tell
        self._start = _START.format(_PACKAGES, [_COMPILER] * (_COMPILER in modules))
        self._process: Any = None

    def open(self) -> None:
        """Start it, unless it is there already."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._start],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._answer()

    def do(self, work: str, *args: Any, **named: Any) -> Any:
        """Return what a function of ``fixing`` returns there, by its name: it is not imported here,
        into the user's process. Raise the GradscopeError that it raises.
        """
        self.open()
        with suppress(OSError):  # it has ended: there is no answer
            self._process.stdin.write(pickle.dumps((work, args, named)))
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        try:
            while isinstance(said := pickle.load(self._process.stdout), str):
                self.tell(said)
        except (EOFError, pickle.UnpicklingError):
            raise GradscopeError(f"{_FAILED}: status {self._process.wait()}") from None
        if isinstance(said, GradscopeError):
            raise said
        return said

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._process is not None:
            self._process.__exit__(*error)  # which closes its stdin, and waits


def improved(
    recording: Recording, end: float, workshop: Workshop, *, sandboxed: bool = True
) -> tuple[Recording, Trace | None]:
    """Return the recording with fixes that were rehearsed and tried up to that time, and what the
    rehearsal has shown; if that fails, as where the program cannot be run again, with the reason.
    ``sandboxed``: the runs end before they would change a file.
    """
    try:
        workshop.open()  # which takes some of the time
        given = recording, end - time.monotonic(), told, started
        return workshop.do("ranking.improved", *given, sandboxed=sandboxed)  # type: ignore[no-any-return]
    except (GradscopeError, OSError) as failure:
        return untried(recording, str(failure)), None


def started(
    module: str, job: Path, folder: str, environment: dict[str, str], output: Any
) -> ChildProcess:
    """Have a module of ``launch`` do a job in a copy of this process, if it can have any."""
    from gradscope.fixing.runs import ForkedProcess, start_process

    if not hasattr(os, "fork"):
        return start_process(module, job, folder, environment, output)
    pid = os.fork()
    if not pid:
        _do(module, job, folder, environment, output)
    return ForkedProcess(pid)


def _do(module: str, job: Path, folder: str, environment: dict[str, str], output: Any) -> NoReturn:
    status = 1
    try:
        _answers.close()  # who waits for the workshop's end waits for none of these
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


_answers: Any = None
"""Where a workshop says what begins, and what came of it."""


def told(answer: object) -> None:
    """Say that in a workshop."""
    _answers.write(pickle.dumps(answer))
    _answers.flush()


def serve(modules: Iterable[str]) -> None:
    """Do what is asked on stdin, until that is closed."""
    global _answers
    _answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for name in _PARTS:
        importlib.import_module(f"gradscope.{name}")
    for name in modules:
        with suppress(Exception):
            importlib.import_module(name)
    told(None)
    with suppress(EOFError):
        while True:
            work, args, named = pickle.load(sys.stdin.buffer)
            try:
                told(pkgutil.resolve_name(f"gradscope.fixing.{work}")(*args, **named))
            except GradscopeError as failure:
                told(failure)
            except Exception as failure:
                told(GradscopeError(f"{_FAILED}: {type(failure).__name__}: {failure}"))
    os._exit(0)  # what torch tears down at its end takes half as long as its import
