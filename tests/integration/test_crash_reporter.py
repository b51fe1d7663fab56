"""A process that dies before it can report is reported on all the same, and a program sees nothing of what does so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradscope.record.file import load
from tests import known
from tests.command import CAUGHT, ENVIRONMENT, command, gradscope, ran, ran_well
from tests.zygote import python

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd")

DIES = f"""
import ctypes, os, resource, signal, subprocess, sys, threading, time

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
{CAUGHT}
for _ in range(3):
    (weight * weight).sum().backward()
    time.sleep(0.06)
sys.stdout.flush()
{{}}
"""

ENDS = {
    "os.kill(os.getpid(), signal.SIGTERM)": (-signal.SIGTERM, "ended by SIGTERM before"),
    "os.kill(os.getpid(), signal.SIGKILL)": (-signal.SIGKILL, "ended by SIGKILL (as the system"),
    "os.kill(os.getpid(), signal.SIGHUP)": (-signal.SIGHUP, "ended by SIGHUP before"),
    "os.abort()": (-signal.SIGABRT, "ended by SIGABRT before"),
    "ctypes.string_at(0)": (-signal.SIGSEGV, "ended by SIGSEGV before"),
    "os._exit(3)": (3, "exited with status 3 without a normal Python shutdown"),
    "os.execv('/bin/sh', ['sh', '-c', 'exit 4'])": (4, "exited with status 4 without a normal"),
    "threading.Thread(target=os.abort).start(); time.sleep(9)": (-signal.SIGABRT, "by SIGABRT"),
    "if os.fork():\n    os._exit(3)\nos.closerange(0, 3)\ntime.sleep(1)": (
        3,
        "with status 3 without",
    ),
}


def processes(folder: Path) -> list[int]:
    """The processes whose working folder this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:
            pass
    return found


@pytest.mark.full(but=3)
@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_dies_is_reported_on(end: str, tmp_path: Path) -> None:
    status, says = ENDS[end]
    (tmp_path / "dies.py").write_text(DIES.format(end))
    done = gradscope("run", "dies.py", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("RuntimeError\n", status)
    assert done.stderr.count(f"\ngradscope: the run {'was ' if 'ended' in says else ''}") == 1
    assert says in done.stderr
    live, report = done.stderr.split("\ngradscope: ")
    assert live.count("error[GS101]") == report.count("error[GS101]") == 1
    assert "1 error, 1 warning in 5 backward calls" in report


def test_its_files_are_written_too(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES.format("os._exit(3)"))
    files = {"--save": "run.gscope", "--html": "page.html", "--draw": "graph.svg"}
    files |= {"--output": "report.json", "--write-baseline": "baseline.json"}
    options = [word for pair in files.items() for word in pair]
    done = gradscope("run", "--format", "json", *options, "dies.py", cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("RuntimeError\n", "", 3)
    wait_for(lambda: not processes(tmp_path))
    assert set(files.values()) | {"dies.py"} == {file.name for file in tmp_path.iterdir()}
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["summary"]["backward_calls"] == 5
    assert report["script"]["exit_status"] == 3
    assert {found["code"] for found in report["findings"]} == {"GS101", "GS102"}
    assert load(tmp_path / "run.gscope").summary.backward_calls == 5


def wait_for(condition: object) -> None:
    assert callable(condition)
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come")


CHILDREN = """
train = '''if True:
    import sys, torch
    for _ in range(4):
        torch.ones(3, requires_grad=True).exp().sum().backward()
'''
subprocess.run([sys.executable, "-c", train])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_its_children_did_is_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES.format(CHILDREN))
    done = gradscope("run", "dies.py", cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert "1 error, 1 warning in 9 backward calls of 2 processes" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["dies.py"]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("timeout 0.1 {run} | cat", "was ended by SIGTERM"),
        ("timeout -s KILL 0.1 {run}; true", "was ended by SIGKILL"),
        ("({run} 2>&1) | cat >&2", "was ended by SIGKILL"),
        ("exec setsid {run}", "was ended by SIGKILL"),
    ],
)
def test_in_a_shell(line: str, says: str, tmp_path: Path) -> None:
    waits = "os.close(1); " + (
        "signal.pause()" if "timeout" in line else "os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "dies.py").write_text(DIES.format(waits))
    # Its time begins when it has come so far.
    delayed = tmp_path / "timeout"
    delayed.write_text(f"#!{sys.executable}\n{TIMEOUT}")
    delayed.chmod(0o755)
    script = line.format(run=" ".join(command("run", "dies.py", executable=sys.executable)))
    done = ran(
        "bash", "-c", script, cwd=tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    )
    assert says in done.stderr
    assert "1 error, 1 warning in 5 backward calls" in done.stderr


TIMEOUT = """
import signal, subprocess, sys
number = signal.SIGKILL if sys.argv[1] == "-s" else signal.SIGTERM
command = sys.argv[4 if sys.argv[1] == "-s" else 2:]
program = subprocess.Popen(command, stdout=subprocess.PIPE)
program.stdout.read()
program.send_signal(number)
program.wait()
"""


LOOKS = """
import os, resource, signal, sys, threading
import torch

torch.ones(3, requires_grad=True).exp().sum().backward()
here = f"/proc/self"
print("files", sorted(n for n in map(int, os.listdir(f"{here}/fd")) if n < 900))
print("lowest", os.dup(0))
print("threads", threading.active_count(), len(os.listdir(f"{here}/task")))
print("children", [open(f"{here}/task/{task}/children").read() for task in os.listdir(f"{here}/task")])
print("used by them", resource.getrusage(resource.RUSAGE_CHILDREN))
print("signals", [signal.getsignal(n) for n in signal.valid_signals()])
print("masks", [line for line in open(f"{here}/status") if line.startswith(("SigPnd", "SigBlk", "SigIgn", "ShdPnd", "NSpgid"))])
print("groups", os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), os.getppid() > 1)
try:
    print("child", os.wait())
except ChildProcessError:
    print("no child")
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError", "os._exit(3)"])
def test_the_program_sees_nothing_of_it(end: str, tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(f"{LOOKS}\nsys.stdout.flush()\n{end}")
    plain = ran(python(), "looks.py", cwd=tmp_path)
    done = gradscope("run", "looks.py", cwd=tmp_path)
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode)
    assert "1 backward call" in " ".join(done.stderr.split())


ADOPTS = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, which outlives exec
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.full
def test_a_process_that_adopts_orphans_has_none(tmp_path: Path) -> None:
    """As process 1 of a container does, and who asks for it."""
    (tmp_path / "looks.py").write_text(LOOKS)
    (tmp_path / "adopts.py").write_text(ADOPTS)
    plain, done = (
        ran_well(sys.executable, "adopts.py", *before, "looks.py", cwd=tmp_path)
        for before in ([], ["-m", "gradscope", "run"])
    )
    assert done.stdout == plain.stdout


NORMAL = {
    "pass": 0,
    "sys.exit(5)": 5,
    "raise ValueError": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT,
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": 0,
    "threading.Thread(target=time.sleep, args=(0.2,)).start()": 0,
    "import atexit; atexit.register(os._exit, 6)": 6,
    "os.fork()": 0,
    "sys.stderr.close()": 0,
}


@pytest.mark.full(but=3)
@pytest.mark.parametrize("end", NORMAL)
def test_nothing_is_left_after_a_programs_own_end(end: str, tmp_path: Path) -> None:
    """Not for a moment: who waits for the process finds the standby gone."""
    (tmp_path / "ends.py").write_text(DIES.format(end))
    with (tmp_path / "out").open("w") as out:
        status = subprocess.call(
            command("run", "--fail-on", "never", "ends.py"),
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=out,
            stderr=out,
        )
    if "fork" in end:  # the program's own child
        wait_for(lambda: not processes(tmp_path))
    assert processes(tmp_path) == []
    assert status == NORMAL[end]
    text = (tmp_path / "out").read_text()
    assert "gradscope: the program" not in text
    assert text.count("in 5 backward calls") == 1


def test_a_reader_of_what_the_program_has_closed_does_not_wait(tmp_path: Path) -> None:
    """As a service does that says so when it is ready."""
    (tmp_path / "serves.py").write_text(DIES.format("os.close(2); sys.stdin.read(); os._exit(3)"))
    with subprocess.Popen(
        command("run", "serves.py", executable=sys.executable),
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # to its end, while the program goes on
        assert "error[GS101]" in known(process.stderr).read()
        assert process.poll() is None
    assert process.returncode == 3
    wait_for(lambda: not processes(tmp_path))
    (file,) = tmp_path.glob("gradscope-report-*.txt")
    assert "1 error, 1 warning in 5 backward calls" in file.read_text()
