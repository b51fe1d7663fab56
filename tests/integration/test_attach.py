"""`gradscope dump` and `attach` reach into a program that was started without gradscope."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradscope.errors import GradscopeError
from gradscope.launch import remote
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
from torch.autograd import graph
print(steps > 1, graph._engine_run_backward.__name__, type(graph._engine_run_backward).__name__)
"""

reaches = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="Python has a way into a process since 3.14"
)
PLAIN = "True _engine_run_backward function\n"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program, until the file ``go-on`` is deleted."""
    script, go_on = tmp_path / "train.py", tmp_path / "go-on"
    script.write_text(PROGRAM)
    go_on.touch()
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, str(script), str(go_on)]
    with subprocess.Popen(words, env=own, stdout=subprocess.PIPE, stderr=-2, text=True) as started:
        until = time.monotonic() + 60
        while not (tmp_path / "go-on.begun").exists():
            assert time.monotonic() < until
            time.sleep(0.1)
        try:
            yield started
        finally:
            go_on.unlink(missing_ok=True)


def printed(program: subprocess.Popen[str], tmp_path: Path) -> str:
    """End the program, and return all that it has printed."""
    (tmp_path / "go-on").unlink()
    return program.communicate(timeout=60)[0]


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
        assert started.communicate(timeout=60)[0].startswith("True ")
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
    refused(ran(*command("run", "--dump-on=USR9", "train.py")), "'USR9' names no signal here")


@reaches
def test_it_is_watched_for_a_while(program: subprocess.Popen[str], tmp_path: Path) -> None:
    file = tmp_path / "run.gscope"
    words = command("attach", str(program.pid), "--duration", "1", "--save", file)
    told = ran_well(*words).stdout
    assert "warning[GS302]: `kept` keeps the graphs of earlier iterations alive" in told
    assert f"gradscope report --verbose {file}" in told
    told = ran_well(*command("attach", str(program.pid), "--duration", "0.5")).stdout
    assert "GS302" in told
    assert "report --verbose" not in told
    assert printed(program, tmp_path) == PLAIN


@reaches
def test_a_program_that_ends_meanwhile_is_reported_on(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    words = command("attach", str(program.pid))
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=-1, stderr=-1, text=True) as attached:
        assert attached.stderr is not None
        assert "watching process" in attached.stderr.readline()
        time.sleep(0.5)
        printed(program, tmp_path)
        told = attached.stdout.read() if attached.stdout else ""
    assert "GS302" in told
    assert "the recording ends here" not in told


@reaches
def test_it_is_asked_for_stacks_and_graphs(program: subprocess.Popen[str], tmp_path: Path) -> None:
    told = ran_well(*command("dump", str(program.pid))).stdout
    assert "thread MainThread\n" in told
    assert "remote.py" not in told
    assert "which no variable leads to" not in told
    assert f'File "{tmp_path / "train.py"}", line ' in told
    assert "from a global variable in train.py, holds this tensor" in told
    assert " backward graphs alive, of " in told
    assert printed(program, tmp_path) == PLAIN


@reaches
def test_a_program_that_does_not_answer_is_left_alone(
    program: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print('begun', flush=True); input(); print('ended')"],
        stdin=-1,
        stdout=-1,
        stderr=-2,
        text=True,
    ) as sleeps:
        assert sleeps.stdout is not None
        assert sleeps.stdout.readline() == "begun\n"
        monkeypatch.setattr(remote, "PATIENCE", 0.5)
        with pytest.raises(GradscopeError, match="has not answered"):
            remote.ask(sleeps.pid, "dump(None)")
        assert sleeps.communicate("\n", timeout=60)[0] == "ended\n"


@reaches
def test_what_cannot_be_reached_is_said() -> None:
    refused(ran(*command("dump", "4194000")), "process 4194000 cannot be reached")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there it can")
def test_an_older_python_says_what_to_do() -> None:
    for word in ("dump", "attach"):
        refused(ran(*command(word, str(os.getpid()))), "has no way into a process that runs")


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
