"""`gradscope run --dump-on SIGNAL` prints what the program does and holds when the signal comes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import ENVIRONMENT, command, ran, ran_well, refused

PROGRAM = """
import sys, time, torch
from pathlib import Path

net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
kept = []
go_on = Path(sys.argv[1])
steps = 0
while go_on.exists():
    loss = net(torch.ones(2, 4)).mean()
    loss.backward()
    kept.append(net(torch.ones(2, 4)))
    steps += 1
    if steps == 1:
        Path(sys.argv[1] + ".begun").touch()
    time.sleep(0.01)
print(steps > 1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_program_that_is_run_answers_a_signal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "go-on").touch()
    told = tmp_path / "told"
    words = command("run", "--dump-on=USR1", "train.py", "go-on", executable=sys.executable)
    with (
        told.open("w") as errors,
        subprocess.Popen(
            words, cwd=tmp_path, env=ENVIRONMENT, stdout=-1, stderr=errors, text=True
        ) as started,
    ):
        for asked in range(4):  # wherever it is by then
            until = time.monotonic() + 60
            begun = tmp_path / "go-on.begun"
            while told.read_text().count("backward graphs alive") < asked or not begun.exists():
                if time.monotonic() > until:
                    started.kill()
                    raise AssertionError(told.read_text())
                time.sleep(0.3)
            if asked < 3:
                started.send_signal(signal.SIGUSR1)
        (tmp_path / "go-on").unlink()
        assert started.communicate(timeout=60)[0] == "True\n"
    assert started.returncode == 0
    err = told.read_text()
    dumps = re.findall(r"thread MainThread\n  File \"(.+)\", line \d+, in <module>", err)
    assert dumps == [str(tmp_path / "train.py")] * 3
    assert len(re.findall(r"(?m)^\d+ backward graphs? alive, of ", err)) == 3
    assert re.search(r"kept\[\d+\], from a global variable in train.py, holds this tensor", err)
    assert "gradscope/" not in err
    assert err.count("note: asked after ") == 3


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_it_answers_from_the_first_line_on_until_it_has_gone(tmp_path: Path) -> None:
    begin = "import sys\nprint('begun', flush=True)\nsys.stdin.readline()\n"
    (tmp_path / "train.py").write_text(f"{begin}import torch\nprint('end', flush=True)\n")
    words = command("run", "--dump-on=USR1", "train.py", executable=sys.executable)
    told = tmp_path / "told"
    line = f'  File "{tmp_path / "train.py"}", line 3, in <module>\n    sys.stdin.readline()\n'
    waits = f"{line}torch has not been imported\n"
    with (
        told.open("w") as errors,
        subprocess.Popen(
            words, cwd=tmp_path, env=ENVIRONMENT, stdin=-1, stdout=-1, stderr=errors, text=True
        ) as started,
    ):
        assert started.stdout is not None
        assert started.stdout.readline() == "begun\n"
        while started.poll() is None:
            started.send_signal(signal.SIGUSR1)
            time.sleep(0.02)
            if waits in told.read_text():  # signals may come before it reads
                assert started.stdin is not None
                started.stdin.close()
        out, err = started.stdout.read(), told.read_text()
    assert (started.returncode, out) == (0, "end\n")
    assert waits in err
    assert "gradscope/" not in err
    assert "Traceback (most" not in err


def test_what_is_no_signal_is_refused() -> None:
    refused(ran(*command("run", "--dump-on=USR9", "train.py")), "'USR9' is not a signal here")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_the_node_that_a_call_is_at_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, torch\n"
        "y = torch.ones(3, requires_grad=True).exp()\n"
        "y.register_hook(lambda g: os.kill(os.getpid(), signal.SIGUSR1))\n"
        "y.sum().backward()\n"
    )
    done = ran_well(*command("run", "--dump-on=SIGUSR1", "train.py"), cwd=tmp_path)
    said = r"backward call 1 at train\.py:4 has run for \d+\.\d s, now ExpBackward0\n"
    assert re.search(said, done.stderr), done.stderr
