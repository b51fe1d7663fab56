"""Reruns a recorded program, with or without changes, in a separate process."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gradscope.errors import GradscopeError
from gradscope.fixing.origins import Origins
from gradscope.fixing.patch import Patch, read
from gradscope.fixing.plan import CODE
from gradscope.fixing.rehearsal import Line, Spot, Trace
from gradscope.formatting import line_at
from gradscope.model import Finding, Header, Recording
from gradscope.record.file import load

# Losses at either end of a run that are averaged, or a quarter of all if these are fewer: one
# loss alone varies from batch to batch.
MEAN_OF = 10

_PACKAGES = str(Path(__file__).resolve().parents[2])
_START = """\
import sys
sys.path.insert(0, {0!r})
from gradscope.launch.{2} import main
sys.path.remove({0!r})
sys.exit(main({1!r}))
"""
# Exit status of a sandboxed run that ended before it would change something outside: programs use
# small numbers, shells 126 and above.
REFUSED = 125
# Seconds that must be left to try one more fix; a small program's try takes 0.1 to 0.2.
LEAST_SECONDS = 2.0
_MOST_OUTPUT = 64 << 10  # bytes of the output that are kept, the last: enough for a traceback
LINES_OF_OUTPUT = 15  # of a failed run that are shown, the last: most tracebacks are no longer
_POLL = 0.01  # seconds between two looks whether a run has ended: a tenth of the shortest try
_GRACE = 5  # seconds for a run that was asked to end, to write its recording
# Backward calls of a program that is first run for its findings: most hazards show in the first
# calls, and leaks within 512.
_MOST_CALLS = 10_000


class ForkedProcess:
    """A forked process, to be asked as one of ``subprocess``."""

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

    def send_signal(self, sig: int) -> None:
        """Send a signal."""
        os.kill(self.pid, sig)


ChildProcess: TypeAlias = subprocess.Popen[bytes] | ForkedProcess
Start: TypeAlias = Callable[[str, Path, str, dict[str, str], Any], ChildProcess]
"""Has a module of ``launch`` do a job: its name, the job's file, the folder to run in, the
environment, and the open file for what is printed.
"""


class Bounds(NamedTuple):
    """The limits of a run: a number of backward calls, and of seconds."""

    calls: int
    seconds: float


class Job(NamedTuple):
    """What the process of a run is given: the program, changed sources, and files to write to.

    ``sandboxed``: the run ends before the program would change anything outside its process.
    """

    script: str
    argv: tuple[str, ...]
    code: str | None
    hooks: bool
    stop_after: int
    recording: Path
    notes: Path
    sources: dict[str, bytes]
    sandboxed: bool = False


class LossLog(NamedTuple):
    """The losses that the backward calls of one line started from, and the text to show."""

    text: str
    values: tuple[float, ...]

    @property
    def averaged(self) -> int:
        """How many calls at either end ``first`` and ``last`` are averages of."""
        return max(1, min(MEAN_OF, len(self.values) // 4))

    @property
    def first(self) -> float:
        """The loss at the beginning."""
        return sum(self.values[: self.averaged]) / self.averaged

    @property
    def last(self) -> float:
        """The loss at the end."""
        return sum(self.values[-self.averaged :]) / self.averaged


class Run(NamedTuple):
    """The result of a run. ``exit_status`` is None if its time ran out, ``output`` is the end of
    what it printed, and ``seconds`` the time that it was given.
    """

    recording: Recording | None
    losses: tuple[LossLog, ...]
    exit_status: int | None
    output: str
    seconds: float = 0

    @property
    def calls(self) -> int:
        """How many backward calls it made."""
        if self.recording is None:
            return 0
        # The totals of a killed run are a little older than its calls.
        last = (call.last_number for call in self.recording.calls)
        return max([self.recording.summary.backward_calls, *last])

    @property
    def is_rank(self) -> bool:
        """Whether it ran as a launcher's only rank."""
        return self.recording is not None and self.recording.header.rank is not None

    @property
    def exception(self) -> str:
        """What it raised, in one line."""
        text = self.recording.outcome.exception if self.recording is not None else None
        return text.splitlines()[0] if text else ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in it."""
        return self.recording.findings if self.recording is not None else ()


def start_process(
    module: str, job: Path, folder: str, environment: dict[str, str], output: Any
) -> subprocess.Popen[bytes]:
    """Start a module of ``launch`` in a new process, to do a job."""
    return subprocess.Popen(
        [sys.executable, "-c", _START.format(_PACKAGES, str(job), module)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # so that the processes that it starts can be ended with it
    )


class Program(NamedTuple):
    """A recorded program, to be run again; see Job for ``sandboxed``."""

    header: Header
    sandboxed: bool = False
    start: Start = start_process

    def check(self) -> None:
        """Raise GradscopeError if it cannot be run again."""
        script, folder = self.header.script, self.header.cwd
        if not folder or not script:
            raise GradscopeError(
                "the recording does not say how the program was started: "
                "record it again, then --verify"
            )
        if script == "-":
            raise GradscopeError("the program came from standard input: run it from a file")
        if not os.path.isdir(folder):
            raise GradscopeError(
                f"cannot run {script}: {folder}, where it was started, is not there any more"
            )

    def run(self, changes: Sequence[Patch], bounds: Bounds) -> Run:
        """Run it with changes to its sources."""
        with self._done("trial", changes, bounds) as (files, status, output):
            found = None
            with suppress(GradscopeError):  # a program that never imports torch leaves none
                found = load(files[0])
            noted = read_notes(files[1])
        losses = _losses(noted, {change.file: change for change in changes})
        return Run(found, losses, status, output, bounds.seconds)

    def rehearse(self, bounds: Bounds, changes: Sequence[Patch] = ()) -> Trace:
        """Run it with changes to its sources and every expression wrapped; return the trace.

        If ``bounds.calls`` is 0, the run ends some calls after the first one that would fail. Raise
        GradscopeError if the program cannot be run, or makes no backward call.
        """
        return self._recorded("rehearsal_run", bounds, changes)  # type: ignore[no-any-return]

    def follow(self, bounds: Bounds, changes: Sequence[Patch] = ()) -> Origins:
        """Run it with changes to its sources, up to the second step of each optimizer and for at
        least ``bounds.calls`` calls; return where each tensor came from.

        Raise GradscopeError if the program cannot be run, or makes no backward call.
        """
        return self._recorded("origins_run", bounds, changes)  # type: ignore[no-any-return]

    def _recorded(self, module: str, bounds: Bounds, changes: Sequence[Patch]) -> Any:
        self.check()
        with self._done(module, changes, bounds) as (files, _, output):
            try:
                record = pickle.loads(files[1].read_bytes())
            except (OSError, EOFError, pickle.UnpicklingError):
                last = (output.strip().splitlines() or ["it ran out of time"])[-1]
                text = f"the rehearsal of {self.header.script} failed: {last}"
                raise GradscopeError(text) from None
        if record.failed and not record.leaves:
            raise self._failure("a backward call", record.ended, output)
        return record

    def _failure(self, to: str, why: str, output: str) -> GradscopeError:
        """Return the error for a program that did not get far enough, with its last lines."""
        error = GradscopeError(f"{self.header.script} could not run to {to}: {why}")
        error.__notes__ = output.rstrip().splitlines()[-LINES_OF_OUTPUT:]
        return error

    @contextmanager
    def _done(
        self, module: str, changes: Sequence[Patch], bounds: Bounds
    ) -> Iterator[tuple[tuple[Path, Path], int | None, str]]:
        """Have a module of ``launch`` run it with changes to its sources; yield the files of its
        recording and its notes, its exit status, and what it printed.
        """
        header = self.header
        sources = {change.file: change.after.data for change in changes if change.file != CODE}
        codes = ("".join(change.after.lines) for change in changes if change.file == CODE)
        with tempfile.TemporaryDirectory(prefix="gradscope-") as folder:
            place = Path(folder)
            files = place / "run.gscope", place / "notes"
            what = header.script, header.argv, next(codes, header.code), header.hooks, bounds.calls
            (place / "job").write_bytes(pickle.dumps(Job(*what, *files, sources, self.sandboxed)))
            with (place / "output").open("wb") as output:
                environment = os.environ | _only_rank(header)
                process = self.start(module, place / "job", header.cwd, environment, output)
                status = _ended(process, bounds.seconds)
            text = (place / "output").read_bytes()[-_MOST_OUTPUT:].decode(errors="replace")
            yield files, status, text


def recorded(header: Header, seconds: float, start: Start = start_process) -> Recording:
    """Run a program under a watch; return its recording.

    Raise GradscopeError if it fails without a finding, or never imports torch.
    """
    program = Program(header, start=start)
    ran = program.run((), Bounds(_MOST_CALLS, seconds))
    if ran.recording is None or (ran.exit_status and not ran.findings):
        status = f"exit status {ran.exit_status}"
        why = ran.exception or (status if ran.exit_status else "it never imported torch")
        raise program._failure("a finding", why, ran.output)
    return ran.recording


def _only_rank(header: Header) -> dict[str, str]:
    """Return the environment in which ``torchrun`` starts a run of one rank, if the recording is of
    a rank: a rank alone would wait for the others without end.
    """
    if header.rank is None:
        return {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0")
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
    return ranks | sizes | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _waited(process: ChildProcess, seconds: float) -> int | None:
    """Return the exit status of a process; None if it has not ended after so many seconds."""
    end = time.monotonic() + seconds
    while (status := process.poll()) is None and time.monotonic() <= end:
        time.sleep(_POLL)
    return status


def _ended(process: ChildProcess, seconds: float) -> int | None:
    """Return the same, and end a process that has not ended."""
    try:
        return _waited(process, seconds)
    finally:
        if process.poll() is None:
            with suppress(OSError, ValueError):
                process.send_signal(signal.SIGINT)  # so that it can write its recording to the end
                _waited(process, _GRACE)
        if process.poll() is None:
            with suppress(ProcessLookupError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:  # on Windows, where this ends it at once
                    process.send_signal(signal.SIGTERM)
            _waited(process, math.inf)


def read_notes(file: Path) -> dict[Line, list[float]]:
    """Return the losses that a run noted before it ended or was killed, by the lines of their
    calls; nothing if there is no file.
    """
    found: dict[Line, list[float]] = {}
    with suppress(OSError, ValueError):
        for text in file.read_text(encoding="utf-8").splitlines():
            line, value = json.loads(text)
            found.setdefault(tuple(map(tuple, line)), []).append(value)
    return found


def _losses(values: dict[Line, list[float]], changes: dict[str, Patch]) -> tuple[LossLog, ...]:
    """Return the values of the calls that started from a single number, by their lines."""
    return tuple(
        LossLog(text_at(*told_place(line, values), changes), tuple(own))
        for line, own in values.items()
    )


def told_place(line: Line, lines: Iterable[Line]) -> Spot:
    """Return the place that distinguishes a line from others: its own, or else that of a caller. If
    all calls are made in one function ``step(loss)``, the lines that call it tell the losses apart.
    """
    alike = [other for other in lines if other != line and other[:1] == line[:1]]
    for depth, place in enumerate(line):
        if all(other[depth : depth + 1] != (place,) for other in alike):
            return place
    return line[0] if line else ("", 0)


def text_at(file: str, line: int, changes: dict[str, Patch]) -> str:
    """Return a line of the program as it ran; empty where it cannot be read."""
    lines: Sequence[str] = ()
    with suppress(OSError, ValueError, SyntaxError):
        lines = changes[file].after.lines if file in changes else read(file).lines
    return line_at(lines, line).strip()
