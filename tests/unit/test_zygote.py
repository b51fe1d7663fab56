"""A program in a fork sees, prints and leaves what it does in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.command import ran
from tests.zygote import CAN_FORK, python

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="runs programs in forks")

PROGRAMS = {
    "surroundings": """
        import os, sys, threading
        print(sys.argv, sys.path[0], __file__, __name__, __spec__, type(__loader__).__name__)
        print(sorted(vars()), sys.stdin.read(), os.getcwd(), os.environ.get("OWN"))
        print(threading.current_thread() is threading.main_thread(), threading.active_count())
        print(sys.executable, sys.orig_argv[1:], sys.gettrace(), sys.getrecursionlimit())
    """,
    "torch is imported when the program does": """
        import sys
        print("torch" in sys.modules, "torch.nn" in sys.modules)
        from torch.nn import Linear
        import torch
        print(torch.__spec__.name, type(torch.__spec__.loader).__name__, sys.modules["torch.nn"].Linear is Linear)
        print(torch.get_num_threads(), torch.is_grad_enabled())
        print([type(finder) for finder in sys.meta_path[:3]])
    """,
    "objects, modules and exit handlers at the end": """
        import atexit, sys, threading, time
        import torch
        class Loud:
            def __init__(self, name): self.name = name
            def __del__(self): print("gone", self.name)
        one, two = Loud("one"), Loud("two")
        two.itself = two
        atexit.register(print, "exit handler")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        sys.stdout.write("no newline")
    """,
    "a fork of its own": """
        import os, sys
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            sys.exit(4)
    """,
    "an uncaught exception": "def f():\n    raise ValueError('text') from KeyError(1)\nf()",
    "another in its hook": "import sys\nsys.excepthook = lambda *args: print(args[1])\n1 / 0",
    "a text to exit with": "import sys\nsys.exit('said')",
    "a number to exit with": "import sys\nsys.exit(-1)",
    "Ctrl-C": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "what is no Python": "x = = 1",
}


def forked(executable: str, script: Path) -> tuple[int, str, str]:
    done = ran(
        executable, script.name, "one", "-m", "two", cwd=script.parent, given="typed", OWN="mine"
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fork_is_like_a_process(name: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAMS[name]))
    assert forked(python(), script) == forked(sys.executable, script)


@pytest.mark.parametrize(
    "command",
    [["-O", "-c", "print(__debug__)"], ["-c", "import sys; print(sys.flags.hash_randomization)"]],
)
def test_what_a_fork_cannot_be_is_run_in_a_process(command: list[str]) -> None:
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    outputs = [
        subprocess.run([one, *command], env=environment, capture_output=True, check=True).stdout
        for one in (python(), sys.executable)
    ]
    assert outputs[0] == outputs[1]


def test_a_fork_ends_with_the_one_that_asked_for_it() -> None:
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    process = subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    fork = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(fork, 0)
    process = subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    assert process.stdout.read() == ""  # which ends when the fork has ended
    process.wait()


@pytest.mark.parametrize("command", [("-m", "shown"), ("shown.py",), ("-c", "import shown")])
def test_a_folder_may_be_on_the_import_path_twice(command: tuple[str, ...], tmp_path: Path) -> None:
    """Torch names its files in warnings as they are seen from the first folder there that holds them."""
    (tmp_path / "shown.py").write_text("import sys\nprint(sys.path)\n", encoding="utf-8")
    paths = [
        ran(executable, *command, cwd=tmp_path, PYTHONPATH=str(tmp_path)).stdout
        for executable in (sys.executable, python())
    ]
    assert paths[1] == paths[0] != ""
