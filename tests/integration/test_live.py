"""`gradscope run --live`: the run is shown in the program's terminal while that prints nothing, and leaves no trace."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.command import ENVIRONMENT, command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a terminal of Unix")

PROGRAM = """
import sys, time, torch
from pathlib import Path

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.02)

net = torch.nn.Linear(4, 1)
for _ in range(3):
    net(torch.ones(2, 4)).mean().backward()
print("a line", sys.stdout.isatty(), sys.stdin.isatty())
wait_for("first")
print("half", end="", file=sys.stderr, flush=True)
wait_for("second")
print(" and half", file=sys.stderr)
try:
    wait_for("third")
except KeyboardInterrupt:
    print("interrupted")
sys.exit(3)
"""


TRAINS = """
import torch
net = torch.nn.Linear(4, 1)
for _ in range(3):
    net(torch.ones(2, 4)).mean().backward()
print("trained")
"""


class Terminal:
    """A command in a terminal of 80 columns and 30 lines."""

    def __init__(self, words: list[str], folder: Path) -> None:
        pexpect, pyte = pytest.importorskip("pexpect"), pytest.importorskip("pyte")
        self._folder, self._quiet, self._end = folder, pexpect.TIMEOUT, pexpect.EOF
        self._screen = pyte.Screen(80, 30)
        self._stream = pyte.Stream(self._screen)
        self.process: Any = pexpect.spawn(
            *(words[0], words[1:]), env=ENVIRONMENT, cwd=str(folder), dimensions=(30, 80)
        )

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def color_of(self, line: int) -> str:
        return str(self._screen.buffer[line][0].fg)

    def shows(self, what: Callable[[str], object]) -> str:
        end = time.monotonic() + 60
        while not what(self.text):
            assert time.monotonic() < end, self.text
            self._read(0.5)
        return self.text

    def _read(self, seconds: float) -> None:
        with suppress(self._quiet):
            self._stream.feed(self.process.read_nonblocking(10_000, timeout=seconds).decode())

    def stays(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read(0.2)
        return self.text

    def go_on(self, name: str) -> None:
        (self._folder / name).touch()

    def ended(self) -> tuple[int | None, int | None]:
        """Return the exit status, or the signal."""
        with suppress(self._end):
            while True:
                self._read(1)
        self.process.close()
        return self.process.exitstatus, self.process.signalstatus


def started(folder: Path, *options: str, text: str = PROGRAM) -> Terminal:
    (folder / "train.py").write_text(text, encoding="utf-8")
    words = command("run", *options, "train.py", executable=sys.executable)
    return Terminal(words, folder)


def test_the_run_is_shown_while_nothing_is_printed_and_leaves_no_trace(tmp_path: Path) -> None:
    live = started(tmp_path, "--live", "--save=run.gscope")
    text = live.shows(lambda text: text.startswith("a line True True\ntrain.py\n"))
    assert re.search(r"train\.py:11 +3 +5 ", text), text
    live.go_on("first")
    live.shows(lambda text: text == "a line True True\nhalf")
    assert live.stays(2.5) == "a line True True\nhalf"  # a progress bar stays as it is
    live.go_on("second")
    live.shows(lambda text: "half and half\ntrain.py\n" in text)
    live.go_on("third")
    assert live.ended() == (3, None)
    plain = started(tmp_path, "--save=run.gscope")
    assert plain.ended() == (3, None)
    assert live.text == plain.text


def test_ctrl_c_is_the_program_s_own(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).touch()
    live = started(tmp_path, "--live", "--save=run.gscope")
    live.shows(lambda text: "backward calls" in text)
    live.process.send("\x03")
    assert live.ended() == (3, None)
    assert "half and half\n^Cinterrupted\n" in live.text


def test_it_dies_as_the_program_does(tmp_path: Path) -> None:
    live = started(tmp_path, "--live", "--save=run.gscope")
    live.shows(lambda text: "backward calls" in text)
    live.process.kill(signal.SIGTERM)
    assert live.ended() == (None, signal.SIGTERM)
    assert "the run was ended by SIGTERM" in " ".join(live.text.split())


def test_a_signal_is_the_program_s_own(tmp_path: Path) -> None:
    live = started(tmp_path, "--live", "--save=run.gscope", "--dump-on=USR1")
    live.shows(lambda text: re.search(r"train\.py:11 +3 +5 ", text))
    live.process.kill(signal.SIGUSR1)
    live.shows(lambda text: "backward graphs alive" in text)
    assert live.text.startswith("a line True True\nthread MainThread\n")
    for name in ("first", "second", "third"):
        live.go_on(name)
    assert live.ended() == (3, None)
    assert "half and half\n" in live.text


OTHER = """
import os, signal, sys, time, torch
torch.ones(1, requires_grad=True).sum().backward()
{}
"""


def test_a_program_that_is_killed_has_no_other_end(tmp_path: Path) -> None:
    text = OTHER.format("os.kill(os.getpid(), signal.SIGKILL)")
    live = started(tmp_path, "--live", "--save=run.gscope", text=text)
    assert live.ended() == (None, signal.SIGKILL)
    assert "the run was ended by SIGKILL" in " ".join(live.text.split())
    assert "cannot write" not in live.text


def test_colours_stay_on(tmp_path: Path) -> None:
    text = OTHER.format("print(end='red: \\x1b[31m\\n'); time.sleep(2.5); print('x')")
    live = started(tmp_path, "--live", "--save=run.gscope", text=text)
    live.shows(lambda text: "backward call" in text)
    live.shows(lambda text: "red:\nx\n" in text)
    assert live.ended() == (0, None)
    assert live.color_of(1) == "red"


def test_what_goes_into_a_file_goes_there(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).touch()
    words = command(
        "run", "--live", "-v", "--save=run.gscope", "train.py", executable=sys.executable
    )
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    live = Terminal(["sh", "-c", f"exec {' '.join(words)} > out.txt"], tmp_path)
    live.shows(lambda text: "backward calls" in text)
    live.go_on("third")
    assert live.ended() == (3, None)
    assert (tmp_path / "out.txt").read_text() == "a line False True\n"
    assert live.text.startswith("half and half\nbackward calls\n")


def test_without_a_terminal_it_runs_all_the_same_and_writes_what_was_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(TRAINS, encoding="utf-8")
    done = subprocess.run(
        command("run", "--live", "--metrics=m.prom", "train.py"),
        cwd=tmp_path,
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    said = "gradscope: --live shows nothing, as it needs a terminal of Unix; in another one, `gradscope top`"
    assert done.stderr.startswith(said)
    assert "no problem found in 3 backward calls" in done.stderr
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert (tmp_path / "m.prom").read_text().endswith("# EOF\n")
