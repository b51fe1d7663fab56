"""`gradscope top` shows a run while it goes on: on a whole terminal, or a line at a time."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gradscope.commands.top import _curve
from gradscope.errors import GradscopeError
from gradscope.model import Sample
from gradscope.record.processes import load_run
from tests.command import ENVIRONMENT, command, ran, ran_well, refused

PROGRAM = """
import sys, time, torch
from pathlib import Path

net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
kept = []
go_on = Path(sys.argv[1])
while go_on.exists():
    optimizer.zero_grad()
    loss = net(torch.ones(2, 4)).mean()
    loss.backward()
    optimizer.step()
    kept.append(net(torch.ones(2, 4)))
    time.sleep(0.01)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that keeps graphs, until the file ``go-on`` is deleted."""
    script, go_on = tmp_path / "train.py", tmp_path / "go-on"
    script.write_text(PROGRAM)
    go_on.touch()
    file = tmp_path / "run.gscope"
    words = command("run", "--save", file, script, go_on, executable=sys.executable)
    with subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as started:
        try:
            until = time.monotonic() + 60
            while not has_found(file):
                assert time.monotonic() < until
                time.sleep(0.1)
            yield started
        finally:
            go_on.unlink(missing_ok=True)


def has_found(file: Path) -> bool:
    """Whether a finding stands in the recording of a run, which may not have begun."""
    with suppress(GradscopeError):
        return bool(load_run(file).findings)
    return False


def test_lines_are_printed_until_the_run_ends(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    words = command("top", tmp_path / "run.gscope", "--every", "0.3")
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        lines = [top.stdout.readline()]
        while len(lines) < 3 or calls_in(lines[-1]) == calls_in(lines[0]):
            lines.append(top.stdout.readline())
        (tmp_path / "go-on").unlink()
        lines += top.stdout.readlines()
    assert top.returncode == 0
    calls = [*map(calls_in, lines)]
    assert calls == sorted(calls)
    assert all("graphs hold" in line for line in lines)
    assert "1 warning" in lines[-1]


def calls_in(line: str) -> int:
    return int(line.split()[1].replace(",", ""))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for open files in /proc")
def test_a_process_is_found_by_its_number(program: subprocess.Popen[str], tmp_path: Path) -> None:
    told = ran_well(*command("report", str(program.pid)))
    assert f"the run has not ended yet (process {program.pid})" in " ".join(told.stdout.split())
    assert "GS302" in told.stdout


def test_a_number_that_is_no_process_of_ours_is_refused() -> None:
    # Another test may have left a recording open in this process.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        refused(ran(*command("top", str(other.pid))), f"{other.pid}: no such file")
        other.communicate(b"\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of Unix")
def test_a_terminal_shows_it_and_obeys_keys(program: subprocess.Popen[str], tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    pyte = pytest.importorskip("pyte")

    screen = pyte.Screen(80, 24)
    stream = pyte.Stream(screen)
    words = command("top", tmp_path / "run.gscope", "--every", "0.3")
    top = pexpect.spawn(
        words[0], words[1:], env=ENVIRONMENT, dimensions=(24, 80), encoding="utf-8", timeout=60
    )

    def shows(what: str, until: Callable[[str], bool] = lambda text: True) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                stream.feed(top.read_nonblocking(10_000, timeout=0.5))
            except pexpect.TIMEOUT:
                continue
            text = "\n".join(screen.display)
            if "q quit" in screen.display[-1] and re.search(what, text) and until(text):
                return text
        raise AssertionError("\n".join(screen.display))

    text = shows("by module")

    assert re.search(r"train\.py:12 +\d+ +10 ", text)
    assert "warning[GS302]" in text
    assert "█" in text.splitlines()[3]  # the curve, which rises
    top.send("m")
    shows("by line")
    top.send("p")
    before = shows("paused")
    top.send("s")
    assert shows("paused").splitlines()[1:3] == before.splitlines()[1:3]
    top.send("p")
    shows("backward calls", lambda text: "paused" not in text)
    (tmp_path / "go-on").unlink()
    shows("^ended")
    top.send("q")
    top.expect(pexpect.EOF)
    top.close()
    assert top.exitstatus == 0


def test_the_curve_has_the_most_of_each_stretch_of_time() -> None:
    samples = [Sample(0, 0, 0, 1), Sample(1, 700, 0, 2), Sample(1.1, 100, 0, 3), Sample(4, 0, 0, 4)]
    assert _curve(samples, 4) == "▁█▂▂"
    assert _curve([], 4) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="a signal of Unix")
def test_ctrl_c_ends_it_without_a_word(program: subprocess.Popen[str], tmp_path: Path) -> None:
    words = command("top", tmp_path / "run.gscope", executable=sys.executable)
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=-1, stderr=-1, text=True) as top:
        assert top.stdout is not None
        assert "graphs hold" in top.stdout.readline()
        top.send_signal(signal.SIGINT)
        assert top.stderr is not None
        assert top.stderr.read() == ""
    assert top.returncode == 0
