"""Tries a fix out: runs the program with and without it, and compares what was seen."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from gradscope.errors import GradscopeError
from gradscope.fixing.patch import Change, bare, read
from gradscope.fixing.proposals import CODE, Plan, Proposal
from gradscope.model import Finding, Recording, Severity
from gradscope.record.file import load

LEAST_CALLS = 100
"""Backward calls of each run, unless another number is given or the findings need more."""

MEAN_OF = 10
"""Most calls at either end of a run whose losses are averaged."""

_PACKAGES = str(Path(__file__).resolve().parents[2])
_START = """\
import sys
sys.path.insert(0, {0!r})
from gradscope.launch.trial import main
sys.path.remove({0!r})
sys.exit(main({1!r}))
"""
_MOST_OUTPUT = 64 << 10
_GRACE = 5  # seconds

_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where each of the two runs ends: after so many backward calls, or after so many seconds."""

    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """What the process of a run gets: the program, changed sources, files to write to."""

    script: str
    argv: tuple[str, ...]
    code: str | None
    hooks: bool
    stop_after: int
    recording: Path
    losses: Path
    sources: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Loss:
    """The values that the backward calls of one line started from, and that line in the run."""

    file: str
    line: int
    text: str
    values: tuple[float, ...]

    @property
    def averaged(self) -> int:
        """How many calls at either end ``first`` and ``last`` average."""
        return max(1, min(MEAN_OF, len(self.values) // 4))

    @property
    def first(self) -> float:
        """The loss at the beginning."""
        return sum(self.values[: self.averaged]) / self.averaged

    @property
    def last(self) -> float:
        """The loss at the end."""
        return sum(self.values[-self.averaged :]) / self.averaged

    @property
    def word(self) -> str:
        """What became of the loss."""
        if len(self.values) < 2:
            return "one call only"
        if not math.isfinite(self.last):
            return "is not finite"
        return "falls" if self.last < self.first else "does not fall"


@dataclass(frozen=True, slots=True)
class Run:
    """What a run showed; ``exit_status`` is None if time ran out, ``output`` the end of it."""

    recording: Recording | None
    losses: tuple[Loss, ...]
    exit_status: int | None
    output: str

    @property
    def calls(self) -> int:
        """How many backward calls it made."""
        if self.recording is None:
            return 0
        # The totals of a killed run are a little older than its calls.
        return max(
            [
                self.recording.summary.backward_calls,
                *(call.last_number for call in self.recording.calls),
            ]
        )

    @property
    def exception(self) -> str:
        """What it raised, in one line."""
        text = self.recording.outcome.exception if self.recording is not None else None
        return text.splitlines()[0] if text else ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in it."""
        return self.recording.findings if self.recording is not None else ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Both runs, and what follows from them."""

    plan: Plan
    bounds: Bounds
    before: Run
    after: Run

    def met(self, proposal: Proposal) -> Finding | None:
        """Return the finding as the program has it now; None where it did not show this time."""
        keys = _keys(proposal.findings, ())
        return next((f for f in self.before.findings if _key(f, ()) in keys), None)

    def left(self, proposal: Proposal) -> Finding | None:
        """Return the finding as the changed program still has it."""
        keys = _keys(proposal.findings, ())
        return next((f for f in self.after.findings if _key(f, self.plan.changes) in keys), None)

    def before_of(self, loss: Loss) -> Loss | None:
        """Return the loss of the same line in the unchanged program."""
        change = next((c for c in self.plan.changes if c.file == loss.file), None)
        line = loss.line if change is None else change.old_line(loss.line)
        return next((b for b in self.before.losses if (b.file, b.line) == (loss.file, line)), None)

    @property
    def new(self) -> tuple[Finding, ...]:
        """The findings of the changed program that the unchanged one did not show."""
        known = _keys(self.before.findings, ())
        known |= _keys(chain.from_iterable(proposal.findings for proposal in self.plan.applied), ())
        return tuple(f for f in self.after.findings if _key(f, self.plan.changes) not in known)

    @property
    def reached(self) -> bool:
        """Whether the changed program got to where the findings were made."""
        made = [
            found.backward_call
            for proposal in self.plan.applied
            if (found := self.met(proposal)) is not None
        ]
        return self.after.exit_status is not None or self.after.calls >= max(made, default=0)

    @property
    def fails(self) -> bool:
        """Whether the changed program fails, in another way than before."""
        ends = [(run.exit_status, run.exception) for run in (self.before, self.after)]
        return self.after.exit_status not in (None, 0) and ends[0] != ends[1]

    @property
    def holds(self) -> bool:
        """Whether the fix works: every hazard showed and is gone, and nothing else went wrong."""
        gone = all(self.met(p) is not None and self.left(p) is None for p in self.plan.applied)
        grave = any(finding.severity is not Severity.ADVICE for finding in self.new)
        return gone and self.reached and not self.fails and not grave


def default_calls(proposals: Sequence[Proposal]) -> int:
    """Return enough calls for the findings to be made again, even in another order."""
    return max(
        [LEAST_CALLS, *(2 * finding.backward_call for p in proposals for finding in p.findings)]
    )


def verify(
    plan: Plan, recording: Recording, bounds: Bounds, tell: Callable[[str], None]
) -> Verdict:
    """Run the recorded program as it is and with the changes of the plan; ``tell`` is called with
    what begins.

    Raise GradscopeError if the recording does not show how the program was started, or its
    directory is gone.
    """
    header = recording.header
    if not header.cwd or not header.script:
        raise GradscopeError(
            "the recording does not say how the program was started: record it again, then --verify"
        )
    if not os.path.isdir(header.cwd):
        raise GradscopeError(
            f"cannot run {header.script}: {header.cwd}, where it was started, is not there any more"
        )
    tell("runs the program as it is")
    before = _run(recording, (), bounds)
    tell("runs the program with the fix")
    return Verdict(plan, bounds, before, _run(recording, plan.changes, bounds))


def _run(recording: Recording, changes: Sequence[Change], bounds: Bounds) -> Run:
    header = recording.header
    sources = {change.file: change.after.data for change in changes if change.file != CODE}
    code = next(
        ("".join(change.after.lines) for change in changes if change.file == CODE), header.code
    )
    with tempfile.TemporaryDirectory(prefix="gradscope-") as folder:
        place = Path(folder)
        files = place / "run.gscope", place / "losses"
        job = Job(header.script, header.argv, code, header.hooks, bounds.calls, *files, sources)
        (place / "job").write_bytes(pickle.dumps(job))
        with (place / "output").open("wb") as output:
            status = _call(
                _START.format(_PACKAGES, str(place / "job")), header.cwd, output, bounds.seconds
            )
        text = (place / "output").read_bytes()[-_MOST_OUTPUT:].decode(errors="replace")
        found = None
        with suppress(GradscopeError):  # a program that never imports torch leaves none
            found = load(files[0])
        losses = (
            _losses(files[1], {change.file: change for change in changes})
            if files[1].exists()
            else ()
        )
    return Run(found, losses, status, text)


def _call(code: str, folder: str, output: Any, seconds: float) -> int | None:
    """Run Python code in a process; return its exit status, None where it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # so that what it started can be ended with it
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with suppress(subprocess.TimeoutExpired, OSError, ValueError):
                process.send_signal(signal.SIGINT)  # so that it can write its recording to the end
                process.wait(_GRACE)
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
            process.wait()


def _losses(file: Path, changes: dict[str, Change]) -> tuple[Loss, ...]:
    """Return what the child wrote, by the lines of the calls; the last line may be cut off."""
    values: dict[tuple[str, int], list[float]] = {}
    for row in file.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, TypeError):
            name, line, value = json.loads(row)
            values.setdefault((name, line), []).append(value)
    return tuple(
        Loss(name, line, _text(name, line, changes), tuple(v)) for (name, line), v in values.items()
    )


def _text(file: str, line: int, changes: dict[str, Change]) -> str:
    """Return a line of the program as it ran; empty where it cannot be read."""
    lines: Sequence[str] = ()
    with suppress(OSError, ValueError, SyntaxError):
        lines = changes[file].after.lines if file in changes else read(file).lines
    return bare(lines[line - 1]).strip() if 0 < line <= len(lines) else ""


def _keys(findings: Any, changes: Sequence[Change]) -> set[_Key]:
    return {_key(finding, changes) for finding in findings}


def _key(finding: Finding, changes: Sequence[Change]) -> _Key:
    """Return what identifies a finding: its code, and its line in the unchanged program."""
    if finding.site is None:
        return finding.code, "", 0
    change = next((c for c in changes if c.file == finding.site.file), None)
    line = finding.site.line
    return finding.code, finding.site.file, line if change is None else change.old_line(line)
