"""A process that is killed, interrupted or loses its disk: what it did so far can be read, and its end is its own."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from gradscope.model import Recording
from gradscope.record.file import load
from tests import known
from tests.command import gradscope
from tests.faults.tries import Tries, fault
from tests.zygote import python

ROOT = Path(__file__).parents[2]
TRAINS = Path(__file__).parent / "programs" / "trains.py"
LAG = 0.2  # seconds: twice WRITE_EVERY, as guarded calls wait for so long, and then the file does
READABLE = f"the recording is readable, with every call that had ended {LAG} s before the last"


def start(folder: Path, *arguments: str, save: Path | None = None) -> subprocess.Popen[str]:
    command = [python(), "-m", "gradscope", "run", "--output", str(folder / "report.txt")]
    if save is not None:
        command += ["--save", str(save)]
    return subprocess.Popen(
        [*command, str(TRAINS), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[list[str], str]:
    """Read on to the end; ``communicate`` would lose what is read ahead."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        return process.stdout.readlines(), process.stderr.read()


def ended(
    folder: Path, draw: Random, stop: Callable[[subprocess.Popen[str]], None], *arguments: str
) -> tuple[int, str, Recording]:
    """Stop a run after a random number of calls; return its status, its errors and the recording."""
    save = folder / "run.gscope"
    process = start(folder, *arguments, save=save)
    lines = [known(process.stdout).readline() for _ in range(draw.randrange(1, 1_000))]
    stop(process)
    whole, errors = finished(process)
    whole = [*lines, *whole]
    recording = load(save)
    count = sum(call.count for call in recording.calls)
    assert count in possible(whole, 0 if recording.outcome.finished else LAG)
    assert recording.summary.backward_calls == count
    assert "is cut off" not in str(recording.summary.notes)
    assert "is damaged" not in str(recording.summary.notes)
    save.unlink()
    return process.returncode, errors, recording


def possible(lines: list[str], lag: float) -> range:
    """Return how many calls a recording may have whose program has printed these lines."""
    ended = [float(line.split()[1]) for line in lines if len(line.split()) == 2]  # not cut off
    least = sum(time <= ended[-1] - lag for time in ended)
    return range(least, len(ended) + 2)  # one more may end before it is printed


@fault("The process", "SIGKILL at a random moment", READABLE, few=2, many=20)
def test_sigkill(tries: Tries, tmp_path: Path) -> None:
    for draw in tries:
        status, errors, recording = ended(tmp_path, draw, lambda p: p.kill(), "run")
        assert (status, errors) == (-signal.SIGKILL, "")
        assert not recording.outcome.finished
        tries.came("no earlier call lost")


@fault(
    "The process",
    "SIGTERM at a random moment",
    f"the process dies of it, as without gradscope, and {READABLE}",
    few=1,
    many=10,
)
def test_sigterm(tries: Tries, tmp_path: Path) -> None:
    for draw in tries:
        status, errors, recording = ended(tmp_path, draw, lambda p: p.terminate(), "run")
        assert (status, errors) == (-signal.SIGTERM, "")
        assert not recording.outcome.finished
        tries.came("no earlier call lost")


@fault(
    "The process",
    "SIGTERM (of a scheduler) or SIGKILL (for lack of memory) at a random moment: the report",
    "it comes within seconds, says what ended the process, and has every call that had ended"
    f" {LAG} s before the last",
    few=2,
    many=20,
)
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd")
def test_a_report_of_a_killed_process(tries: Tries, tmp_path: Path) -> None:
    for draw in tries:
        report = tmp_path / "report.txt"
        report.unlink(missing_ok=True)
        process = start(tmp_path, "run")
        lines = [known(process.stdout).readline() for _ in range(draw.randrange(1, 1_000))]
        number = draw.choice([signal.SIGTERM, signal.SIGKILL])
        process.send_signal(number)
        lines += finished(process)[0]
        told = None
        for _ in range(600):
            text = report.read_text()
            if told := re.search("in ([0-9,]+) backward call", text):
                break
            time.sleep(0.05)
        assert int(known(told)[1].replace(",", "")) in possible(lines, LAG)
        assert text.startswith(f"gradscope: the run was ended by {number.name}")
        tries.came("reported")


@fault(
    "The process",
    "SIGTERM, and the program's own handler calls sys.exit(5)",
    "the exit status is 5, and the recording is whole",
    few=1,
    many=10,
)
def test_sigterm_handled(tries: Tries, tmp_path: Path) -> None:
    for draw in tries:
        stop = ended(tmp_path, draw, lambda p: p.terminate(), "own handler")
        assert stop[:2] == (5, "")
        assert stop[2].outcome.exit_status == 5
        assert stop[2].outcome.finished
        tries.came("whole")


@fault(
    "The process",
    "SIGINT (Ctrl-C) at a random moment",
    "the process dies of it, the traceback shows the program alone, and the recording is whole",
    few=2,
    many=10,
)
def test_sigint(tries: Tries, tmp_path: Path) -> None:
    for draw in tries:
        status, errors, recording = ended(
            tmp_path, draw, lambda p: p.send_signal(signal.SIGINT), "run"
        )
        assert status == -signal.SIGINT
        assert errors.endswith("KeyboardInterrupt\n")
        assert "gradscope/" not in errors
        assert recording.outcome.exception == "KeyboardInterrupt"
        assert recording.outcome.finished
        tries.came("whole")


GENTLER = {
    "os._exit": 3,
    "abort": -signal.SIGABRT,
    "a segmentation fault": -signal.SIGSEGV,
    "exec": 4,
}


@fault(
    "The process",
    "os._exit(3), abort, a segmentation fault, or another program by exec, after a random call",
    f"the process ends as without gradscope, and {READABLE}",
    few=len(GENTLER),
    many=20,
)
def test_it_ends_at_once(tries: Tries, tmp_path: Path) -> None:
    ways = [*GENTLER] * tries.times
    for draw in tries:
        way, last = ways.pop(), str(draw.randrange(1, 1_000))
        status, _, recording = ended(tmp_path, draw, lambda p: None, way, last)
        assert status == GENTLER[way]
        assert not recording.outcome.finished
        assert not recording.outcome.running
        tries.came("no earlier call lost")


@fault(
    "The process",
    "SIGKILL early in a run, while it waits after a call, or hangs within one that is new",
    "the recording is readable, with every call that had ended, as totals and table say, and names the call that had begun; before, it says that the run has not ended",
    few=2,
    many=10,
)
def test_it_hangs(tries: Tries, tmp_path: Path) -> None:
    save = tmp_path / "run.gscope"
    line = 1 + TRAINS.read_text("utf-8").partition(".backward()")[0].count("\n")
    for number, draw in enumerate(tries):
        way, last = ("pause", "hang")[number % 2], draw.randrange(1, 80)
        process = start(tmp_path, way, str(last), save=save)
        assert any(line == "waits\n" for line in known(process.stdout))
        running, before = load(save), report(save)
        process.kill()
        finished(process)
        killed, after = load(save), report(save)
        for recording, text in ((running, before), (killed, after)):
            assert sum(call.count for call in recording.calls) == last
            assert f"in {last} backward call" in text
            begun = [note for note in recording.summary.notes if "had begun" in note]
            where = f"at trains.py:{line} had begun and had not ended"
            expected = [f"backward call {last + 1} {where}"] if way == "hang" else []
            assert begun == expected
        assert f"the run has not ended yet (process {running.header.pid})" in before
        assert "the run was stopped before it could finish" in after
        save.unlink()
        tries.came("no call lost")


def report(file: Path) -> str:
    shown = gradscope("report", file, COLUMNS="200")
    assert (shown.returncode, shown.stderr) == (0, "")
    return shown.stdout


@fault(
    "The process",
    "multiprocessing.Pool ends its workers while they wait for more work",
    "each call of each worker is in the report, where it has made no more than 100",
    few=1,
    many=10,
)
def test_pool(tries: Tries, tmp_path: Path) -> None:
    program = TRAINS.with_name("pool.py")
    for _ in tries:
        done = gradscope("run", program, cwd=tmp_path, OMP_NUM_THREADS="1")
        assert (done.returncode, done.stdout) == (0, "600.0\n")
        assert "in 100 backward calls of 2 processes" in " ".join(done.stderr.split())
        tries.came("no call lost")


@fault(
    "The process",
    "the disk is full before the recording ends",
    "the program runs on, and what is there is readable",
    few=1,
    many=10,
)
@pytest.mark.skipif(sys.platform != "linux", reason="limits a process through /proc")
def test_full_disk(tries: Tries, tmp_path: Path) -> None:
    for draw in tries:
        save = tmp_path / "run.gscope"
        process = start(tmp_path, "stop", save=save)
        assert process.stdout is not None
        for _ in range(draw.randrange(1, 60)):
            process.stdout.readline()
        # A file of this process may not grow: what a full disk does to a recording alone.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for number in [process.pid, *map(int, children), *_forks_with(save)]:
            size = save.stat().st_size
            resource.prlimit(number, resource.RLIMIT_FSIZE, (size, size))
        rest, errors = finished(process)
        assert (process.returncode, errors) == (0, "")
        assert rest[-1] == "done\n"
        recording = load(save)
        early = not recording.outcome.finished
        report = tmp_path / "report.txt"
        tries.came("ended early" if early else "had room enough")
        save.unlink()
        report.unlink()


def _forks_with(file: Path) -> list[int]:
    """The processes that have a file open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if entry.readlink() == file:
                found.append(int(entry.parts[2]))
        except OSError:  # it has ended
            continue
    return sorted(set(found))


@fault(
    "The process",
    "the program removes the folder of its recording",
    "the program runs on and exits with its own status",
    few=1,
    many=5,
)
def test_removed_folder(tries: Tries, tmp_path: Path) -> None:
    for _ in tries:
        folder = tmp_path / "gone"
        folder.mkdir()
        process = start(tmp_path, "remove", str(folder), save=folder / "run.gscope")
        rest, errors = process.communicate(timeout=240)
        assert process.returncode == 0
        assert errors == ""
        assert rest.endswith("done\n")
        tries.came("ran on")


@fault(
    "The process",
    "the recording cannot be written where it should go",
    "one line says so before the program starts, and the exit status is 2",
    few=1,
    many=3,
)
def test_unwritable_folder(tries: Tries, tmp_path: Path) -> None:
    places = ["/proc/run.gscope", "missing/run.gscope", "/dev/null/run.gscope"]
    for place in places[: tries.times]:
        process = start(tmp_path, "stop", save=Path(place))
        rest, errors = process.communicate(timeout=240)
        assert (process.returncode, rest) == (2, "")
        assert errors.startswith("gradscope: ")
        assert errors.count("\n") == 1
        tries.begun += 1
        tries.came("refused in one line")
