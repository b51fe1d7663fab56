"""Runs programs on the CPU and on the simulated device, plain and watched, each in a separate fork, and compares.

``python -m tests.device.running [PROGRAM…]`` compares these programs, or all annotated ones, and prints each difference
and how many there are of each sort.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import device, known
from tests.forked import in_fork

TESTS = Path(__file__).parents[1]
DEVICES = ("cpu", "sim")

Difference = tuple[str, str]
"""What it is that differs, as a path into the report, and what is there on the two sides."""


def annotated() -> list[Path]:
    """All programs of the corpus and of the cases, and those of promise 1 that a device can run."""
    found = sorted([*(TESTS / "cases").glob("*.py"), *(TESTS / "corpus").glob("*/*.py")])
    return found + sorted((TESTS / "integration/promise1").glob("[a-z]*.py"))


@dataclass(frozen=True)
class Ran:
    """What came of one run: its output, the text of its exception, the threads at its end; the report of a watched one."""

    output: str
    error: str | None
    threads: list[str]
    report: dict[str, Any] | None = None


def run(program: Path, where: str, *, watched: bool, devices: int = 1) -> Ran | None:
    """Run a program in a fork, on the CPU or on the device; None if it does not end, or ends its process itself."""
    # Before the fork: what programs import, an optimizer for one.
    import torch._dynamo  # noqa: F401

    import gradscope.cli  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        ran = Path(folder, "ran")

        def work() -> None:
            os.dup2(os.open(os.path.join(folder, "errors"), os.O_WRONLY | os.O_CREAT), 2)
            ran.write_text(json.dumps(_run_here(program, where, watched, devices, folder)))

        with contextlib.suppress(AssertionError):
            in_fork(work)
        return Ran(**json.loads(ran.read_text())) if ran.exists() else None


def _run_here(
    program: Path, where: str, watched: bool, devices: int, folder: str
) -> dict[str, Any]:
    from gradscope.cli import main

    if where == "sim":
        device.load(devices)
    device.make_on(where)
    output, error, report = io.StringIO(), None, None
    os.chdir(folder)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        if watched:
            file = os.path.join(folder, "report")
            # A rehearsal runs in a process of its own, where there is no device.
            options = ["--format", "json", "--output", file, "--fail-on", "never", "--no-rehearsal"]
            with contextlib.suppress(SystemExit):
                sys.argv = ["gradscope", "run", *options, str(program), "one", "two"]
                main()
            report = json.loads(Path(file).read_text())
            error = report["script"]["exception"]
        else:
            sys.argv = [str(program), "one", "two"]
            sys.path.insert(0, str(program.parent))
            try:
                runpy.run_path(str(program), run_name="__main__")
            except BaseException as raised:
                error = f"{type(raised).__name__}: {raised}"
    names = sorted(thread.name for thread in threading.enumerate())
    return {"output": output.getvalue(), "error": error, "threads": names, "report": report}


VARIES = frozenset({"started", "ended", "time", "clock", "pid", "by_device"})
"""What differs from run to run, or is there to tell the two sides apart."""

ALLOWED = {
    r"\.calls\[\d+\]\.nodes_built": "of a thread of the engine's the number of the last node is known when a"
    " hook runs there, so nodes that save nothing may be counted with a later call",
    r"\.summary\.nodes(_unmet)?": "for the same reason, at the end; and a node of the watch's thread that is taken"
    " for one of the engine's counts for all before it",
    r"(\.summary|\.calls\[\d+\])\.nodes_destroyed": "a thread of the engine lets go of what it ran last a little"
    " after the call has returned, without a watch too",
    r"\.memory\..*alone_bytes": "two storages stand for one memory here, so one has an owner more",
}
"""What of the tables may differ, and why."""


def differences(one: Any, other: Any, path: str = "") -> Iterator[Difference]:
    """Yield where two reports differ."""
    if path.endswith(".summary.notes"):
        other = [note for note in other if not re.match("all tensors on (sim|cuda)", note)]
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key not in VARIES:
                yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (each, its) in enumerate(zip(one, other, strict=True)):
            yield from differences(each, its, f"{path}[{i}]")
    elif _spelled(one) != _spelled(other):
        yield path, f"{one!r} / {other!r}"


def _spelled(value: Any) -> Any:
    """Return a value with the device's name in it spelled as the CPU's."""
    if not isinstance(value, str):
        return value
    text = re.sub(r"sim(\w+)Type \[", r"torch.\1Tensor [", value)  # torch has no name for it
    text = re.sub(r"torch\.cuda\.(?=\w+Tensor \[)", "torch.", text)
    # Another one in each run.
    text = re.sub(r"process \d+|ThreadPoolExecutor-\d+", "one", text)
    return re.sub(r"(sim|cuda):\d+", "cpu", re.sub(r", device='(sim|cuda):\d'", "", text))


UNREAD = "a write through .data"
"""So begins a finding for which memory is compared, which is read on the CPU only."""


def without_unread(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the findings that no device can have."""
    found = [f for f in report["findings"] if not f["message"].startswith(UNREAD)]
    return report | {"findings": found}


@dataclass(frozen=True)
class Comparison:
    """What differs between the two sides, and between plain and watched on the device."""

    changed: list[Difference]
    """Of the program by the watch: promise 1."""
    findings: list[Difference]
    details: list[Difference]
    tables: list[Difference]

    @property
    def verdict(self) -> str:
        """Name the worst sort of difference."""
        sorts = ("changed", "findings", "details", "tables")
        return next((sort for sort in sorts if getattr(self, sort)), "equal")


def compare(program: Path, devices: int = 1) -> Comparison | str:
    """Compare all runs of one program; say why where that cannot be done."""
    plain = run(program, "cpu", watched=False), run(program, "sim", watched=False, devices=devices)
    if plain[0] is None or plain[1] is None:
        return "it ends its process"
    if (plain[0].error is None) != (plain[1].error is None):
        return f"it runs otherwise on a device: {(plain[0].error or plain[1].error or '')[:100]}"
    watched = run(program, "cpu", watched=True), run(program, "sim", watched=True, devices=devices)
    if watched[0] is None:
        return "it ends its process under a watch"
    if watched[1] is None:
        return Comparison([("", "it ends its process under a watch on the device")], [], [], [])
    changed = [
        (what, f"{getattr(plain[1], what)!r} / {getattr(watched[1], what)!r}")
        for what in ("output", "error", "threads")
        if getattr(plain[1], what) != getattr(watched[1], what)
        and getattr(plain[0], what) == getattr(watched[0], what)
    ]
    assert watched[0].report is not None
    return Comparison(changed, *judged(watched[0].report, known(watched[1].report)))


def judged(
    on_cpu: dict[str, Any], on_device: dict[str, Any]
) -> tuple[list[Difference], list[Difference], list[Difference]]:
    """Return how two reports differ: in their findings, the details of these, and the tables."""
    on_cpu = without_unread(on_cpu)
    findings = list(differences(_gist(on_cpu), _gist(on_device)))
    details, tables = [], []
    for path, text in differences(on_cpu, on_device):
        if path.startswith(".findings"):
            details.append((path, text))
        elif not any(re.fullmatch(allowed, path) for allowed in ALLOWED):
            tables.append((path, text))
    return findings, details, tables


def _gist(report: dict[str, Any]) -> list[Any]:
    """Return the codes and lines of the findings."""
    return sorted(
        [f["code"], (f["location"] or {}).get("line", 0), f["certainty"], f["missed"]]
        for f in report.get("findings", ())
    )


def main(programs: Iterable[str]) -> None:
    """Compare programs, and print what differs."""
    counted = Counter[str]()
    for program in [Path(p).resolve() for p in programs] or annotated():
        comparison = compare(program)
        sort = "not compared" if isinstance(comparison, str) else comparison.verdict
        counted[sort] += 1
        print(f"{program.parent.name}/{program.stem}: {sort}", flush=True)
        if isinstance(comparison, str):
            print(f"    {comparison}")
            continue
        for which in ("changed", "findings", "details", "tables"):
            for path, text in getattr(comparison, which):
                print(f"    {which} {path}: {text[:300]}")
    print(dict(counted))


if __name__ == "__main__":
    main(sys.argv[1:])
