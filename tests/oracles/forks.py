"""Runs one script in a fork of this process, plain or watched, bounded in time and memory."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.oracles import growth

LARGEST_COPY = 32 << 20
"""A file beside the script that is larger than this is linked, not copied."""


@dataclass(frozen=True)
class Task:
    """A script and how it is to be run; ``text`` stands in for the file's own if it is given."""

    script: Path
    arguments: tuple[str, ...] = ()
    text: str | None = None
    prelude: Path | None = None
    seed: int = 0
    seconds: float = 120
    gibibytes: float = 8
    measure_growth: bool = False


@dataclass(frozen=True)
class Ran:
    """How a run ended; ``status`` is None if it was ended for the time it took."""

    status: int | None
    stdout: str
    stderr: str
    seconds: float
    mebibytes: float
    report: dict[str, Any] | None = None
    sizes: tuple[int, ...] = field(default=())
    """How many nodes the program's tensors led to, at one optimizer step after the other."""


def preload(names: str) -> None:
    """Import torch and the modules of a comma-separated list once, for all forks."""
    import torch  # noqa: F401

    for name in filter(None, names.split(",")):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run(task: Task, *, watched: bool) -> Ran:
    """Run a script in a copy of its folder, which always has the same path."""
    base = Path(tempfile.gettempdir(), f"wild-{os.getpid()}")
    shutil.rmtree(base, ignore_errors=True)
    folder = base / "one" / "two" / "three"  # a script may write above its folder
    _copy(task.script.parent, folder)
    script = folder / task.script.name
    if task.text is not None:
        script.unlink()
        script.write_text(task.text, encoding="utf-8")
    sys.stdout.flush()
    process = os.fork()
    if not process:
        _child(task, script, base, watched)
    status, seconds, mebibytes = _wait(process, task.seconds)
    ran = Ran(
        status,
        (base / "stdout").read_text("utf-8", "replace"),
        (base / "stderr").read_text("utf-8", "replace"),
        seconds,
        mebibytes,
        _report(base / "report.json"),
        growth.read(base / "sizes"),
    )
    shutil.rmtree(base, ignore_errors=True)
    return ran


def _copy(source: Path, target: Path) -> None:
    def link_or_copy(one: str, other: str) -> None:
        (os.symlink if os.path.getsize(one) > LARGEST_COPY else shutil.copyfile)(one, other)

    skipped = shutil.ignore_patterns(".git", "__pycache__", "*.ipynb")
    shutil.copytree(source, target, copy_function=link_or_copy, ignore=skipped)


def _report(path: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return report


def _wait(process: int, limit: float) -> tuple[int | None, float, float]:
    watched = os.pidfd_open(process)
    in_time = bool(select.select([watched], [], [], limit)[0])
    with contextlib.suppress(ProcessLookupError):  # those that it started as well
        os.killpg(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    os.close(watched)
    code = os.waitstatus_to_exitcode(status) if in_time else None
    return code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _child(task: Task, script: Path, base: Path, watched: bool) -> NoReturn:
    status = 70
    try:
        os.setsid()
        _redirect(base)
        limit = int(task.gibibytes * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        os.chdir(script.parent)
        _seed(task.seed)
        sys.path[:0] = [str(script.parent)]
        if task.prelude is not None:
            code = compile(task.prelude.read_text("utf-8"), str(task.prelude), "exec")
            exec(code, {"__name__": "prelude", "SCRIPT": str(task.script)})
        if task.measure_growth:
            growth.start(base / "sizes")
        if watched:
            status = _watched(script, task.arguments, base / "report.json")
        else:
            status = _plain(script, task.arguments)
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)


def _redirect(base: Path) -> None:
    for name, fd in (("stdout", 1), ("stderr", 2)):
        file = os.open(base / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, fd)
        os.close(file)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # as after a start of the interpreter: whole blocks, for these are files
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _seed(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _watched(script: Path, arguments: tuple[str, ...], report: Path) -> int:
    from gradscope.cli import main

    options = ["--format", "json", "--output", str(report), "--fail-on", "never"]
    sys.argv = ["gradscope", "run", *options, str(script), *arguments]
    try:
        main()
    except SystemExit as end:
        return _status(end)
    return 0


def _plain(script: Path, arguments: tuple[str, ...]) -> int:
    main = ModuleType("__main__")
    main.__file__ = str(script)
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    sys.argv = [str(script), *arguments]
    try:
        code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as end:
        return _status(end)
    except BaseException as error:
        entry = error.__traceback__
        error.__traceback__ = entry.tb_next if entry is not None else None
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1
