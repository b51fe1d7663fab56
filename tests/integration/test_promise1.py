"""Promise 1: a script's output, exit status, warnings and tracebacks are the same with and without gradscope."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.command import ran
from tests.needs import SAVED_IS_TOLD, has
from tests.zygote import python

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for path in (Path(__file__).parent / "promise1").glob("*.py")
    if not path.name.startswith("_")
)
_LOGGED = re.compile(r"(?m)^[IWE]\d{4} [\d:.]+ \d+ ")
"""When and by which process torch has logged something."""
REAL = {
    "anomaly": "shows the stack down to its outer end",
    "compiled": "starts compilers and imports all of torch's own",
    "compiled_around_hooks": "starts compilers and imports all of torch's own",
    "cpp_function": "builds and loads an extension",
    "dataloader": "starts fresh processes",
    "ddp": "starts threads of torch's, and talks to them",
    "gc_counts": "counts what Python's collector sees",
    "optimizers": "has torch and torch._dynamo imported while it is watched, as most programs do",
    "processes": "starts fresh processes",
    "profiled": "starts torch's profiler, which has a state of the process",
    "profilers": "starts torch's profiler, and has nothing of gradscope imported before",
    "surroundings": "looks at what a fresh process is given",
}
"""Scripts that run in separate processes, and why; the others run in forks, see ``tests.zygote``."""

ALIASES = "hooks keep a detached alias of a saved output"
RUNNER = "a stack that torch formats as a whole has the runner's frames at its outer end"

LIMITS = {
    ("gc_counts", ()): f"{ALIASES}, and Python's collector finds it",
    ("profiled", ()): f"{ALIASES}, and the profiler sees the detach",
    ("saved_field_identity", ()): "under hooks torch hands out another object for a saved field",
    ("node_metadata", ()): "the mark of a node is in its metadata",
    ("node_metadata", ("--no-hooks",)): "the mark of a node is in its metadata",
    (
        "gc_counts",
        ("--no-hooks",),
    ): "looking at a graph makes Python objects of tensors that only C++ knew",
    ("anomaly", ()): RUNNER,
    ("anomaly", ("--no-hooks",)): RUNNER,
    (
        "subclass_dispatch",
        (),
    ): "under hooks torch copies what it restores, and a subclass sees the detach",
}
if not has(SAVED_IS_TOLD):
    LIMITS["saved_tensor_hooks", ()] = "what a SavedTensor that stands alone holds is not told"
"""What is known to differ, and why; the test fails if one of these no longer does."""


@dataclass(frozen=True)
class Ran:
    """All that the outside sees of a process."""

    status: int
    stdout: str
    stderr: str


def run(extensions: Path, script: Path, *command: str | Path) -> Ran:
    surroundings = {
        "KINETO_LOG_LEVEL": "99",  # torch's profiler logs times and process numbers
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "TORCH_EXTENSIONS_DIR": str(extensions),
    }
    executable = sys.executable if script.stem in REAL else python()
    line = (executable, *command, script, "one", "two")
    done = ran(*line, cwd=ROOT, given="some input\n", **surroundings)
    return Ran(done.returncode, done.stdout, _LOGGED.sub("", done.stderr))


@functools.cache
def run_plainly(extensions: Path, script: Path) -> Ran:
    return run(extensions, script)


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the C++ extension is built, once for all runs of all workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "extensions"


def needs_compiler(script: Path) -> bool:
    return script.stem == "cpp_function" and not (shutil.which("c++") and shutil.which("ninja"))


def cases(*, real: bool) -> Iterator[Any]:
    for script in SCRIPTS:
        if (script.stem in REAL) != real:
            continue
        for options in ((), ("--no-hooks",)):
            reason = LIMITS.get((script.stem, options))
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            name = f"{script.stem}-{'no-hooks' if options else 'hooks'}"
            yield pytest.param(script, options, marks=marks, id=name)


@pytest.mark.full(but=12)
@pytest.mark.parametrize(("script", "options"), list(cases(real=False)))
def test_nothing_changes(
    script: Path, options: tuple[str, ...], extensions: Path, tmp_path: Path
) -> None:
    nothing_changes(script, options, extensions, tmp_path / "report.txt")


@pytest.mark.full
@pytest.mark.parametrize(("script", "options"), list(cases(real=True)))
def test_nothing_changes_in_a_separate_process(
    script: Path, options: tuple[str, ...], extensions: Path, tmp_path: Path
) -> None:
    if needs_compiler(script):
        pytest.skip("needs a C++ compiler and ninja")
    nothing_changes(script, options, extensions, tmp_path / "report.txt")


def nothing_changes(script: Path, options: tuple[str, ...], extensions: Path, report: Path) -> None:
    plain = run_plainly(extensions, script)
    if "terminate called" in plain.stderr:
        # Torch 2.4 may end so where threads of its own still run.
        plain = run(extensions, script)
    command: tuple[str | Path, ...]
    command = ("-m", "gradscope", "run", "--fail-on", "never", "--output", report, *options)
    watched = run(extensions, script, *command)
    if "resource_tracker" in watched.stderr:
        # On a busy machine Python's own tracker may end before the processes that it tracks.
        watched = run(extensions, script, *command)
    if watched.stdout != plain.stdout and run(extensions, script).stdout != plain.stdout:
        pytest.skip("with this torch, what it prints varies without gradscope too")
    assert watched.stdout == plain.stdout
    assert watched.stderr == plain.stderr
    assert watched.status == plain.status
    assert "failed in gradscope" not in " ".join(report.read_text().split())


def test_scripts_do_something(extensions: Path) -> None:
    assert len(SCRIPTS) >= 40
    plain = run_plainly(extensions, next(path for path in SCRIPTS if path.stem == "no_grad"))
    assert plain.status == 0
    assert "grad torch.float32 (4, 4)" in plain.stdout
    assert not plain.stderr
