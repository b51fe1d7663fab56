"""
Programs without the wait for ``import torch``: each runs in a fork of a process that has imported it.

``python()`` names an executable that takes a command line as Python's own does, and behaves as
Python does: arguments, directory, environment, streams, ``__main__``, import path, exit status,
exit handlers and signals are the program's. It falls back to a fresh interpreter for all that a
fork cannot be (see ``client.py``), and everywhere where the system lacks what it needs.

A fork differs from a fresh process in this: torch is in memory already, and what it imports later
(``torch._dynamo``, with the first optimizer) as well; gradscope is, for those that run it; Python's
collector does not look at what was there before; one frame more is below the program's; strings have
the same hashes in each process, and numbers drawn without a seed are the same. ``import torch`` still
is an import, which gradscope's import hook meets. Tests of these things name ``sys.executable``.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
CAN_FORK = hasattr(os, "fork") and hasattr(os, "pidfd_open")
_STARTUP = {
    "KINETO_LOG_LEVEL": "99",  # torch's profiler logs times and process numbers
    "PYTHONHASHSEED": "0",
}


@functools.cache
def python() -> str:
    """Return the path of the executable, once the process that is forked is ready."""
    if not CAN_FORK:
        return sys.executable
    folder, owner = tempfile.mkdtemp(prefix="zygote"), os.getpid()
    socket = f"{folder}/socket"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    server = subprocess.Popen(
        [sys.executable, str(_HERE / "server.py"), socket, str(_ROOT)],
        env=environment | _STARTUP,
        stdin=subprocess.PIPE,  # all three are pipes, as they are for most programs
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stderr is not None
    if len(server.stdout.read(2)) < 2:  # a sign of each of its two processes
        raise RuntimeError(f"the process that is to be forked failed:\n{server.stderr.read()!r}")
    client = Path(folder, "python")
    text = (_HERE / "client.py").read_text(encoding="utf-8")
    client.write_text(f"#!{sys.executable} -IS\n{text}\nmain({socket!r})\n", encoding="utf-8")
    client.chmod(0o700)

    def end() -> None:
        if os.getpid() != owner:  # a fork of this process that runs its exit handlers
            return
        for stream in (server.stdin, server.stdout, server.stderr):
            assert stream is not None
            stream.close()  # the end of its stdin ends it
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return str(client)
