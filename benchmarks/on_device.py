"""The page for the day a GPU is at hand: what a watch does and costs on a device.

    python -m benchmarks.on_device --write page.md

It takes 8 minutes at most. Without CUDA the device is the simulated one of ``tests/device``, so
that the page itself is tried before. Each row is made in a process of its own, which is ended where
it hangs, and each section has its share of the time; the status is 1 where a row differs or failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

# What asks for CUDA, and what compiles, must leave this process able to fork.
os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

import torch
import torch._dynamo  # which each row would import

from benchmarks.device_rows import (
    CHECKS,
    LOOPS,
    WAITING,
    Row,
    check,
    overhead,
    programs,
    syncs,
)
from tests import device
from tests.forked import returned_by_fork

LIMIT = 90  # seconds of a row
PIECE = 5  # programs of a row
SAID = 40  # lines that are shown of a row that failed
NO_TIME: Row = [], "skipped: the section's time is spent"
NO_END: Row = [], f"failed: it has not ended in {LIMIT} s"


@dataclass(frozen=True)
class Section:
    """A table of the page: its share of the time, its rows, and how many are made at once."""

    title: str
    columns: str
    seconds: int
    rows: tuple[str, ...]
    make: Callable[[str, str, int], Row]
    """Makes a row by its name, on a device, with so many steps of a loop at most."""
    at_once: int = 1


def sections(count: int) -> tuple[Section, ...]:
    """Return what is on the page, with so many programs; it takes 460 seconds."""
    pieces = (f"{first} to {min(first + PIECE, count) - 1}" for first in range(0, count, PIECE))
    return (
        Section(
            "Random programs, and the same on the CPU",
            "programs | equal | other tables | other findings or results | not compared",
            *(160, tuple(pieces), programs, max(1, (os.cpu_count() or 1) // 2)),
        ),
        Section(
            "A training step: plain in µs, and how many times as long in other ways",
            "loop | CPU | watched | idle hooks | device | watched | idle hooks",
            *(150, LOOPS, overhead),
        ),
        Section(
            "How often the host waits for the device in some steps",
            "loop | plain | watched | one planted",
            *(50, WAITING, syncs),
        ),
        Section(
            "What is peculiar to devices, plain and watched",
            "check | on | parameters | bytes held | planted error",
            *(100, CHECKS, check),
        ),
    )


def made(section: Section, where: str, steps: int) -> Iterator[tuple[str, Row, str]]:
    """Make the rows of a section, until its time is spent; yield what their processes said, too."""
    deadline = time.monotonic() + section.seconds
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, len(section.rows), section.at_once):
            batch = section.rows[first : first + section.at_once]
            limit = min(time.monotonic() + LIMIT, deadline)
            if limit - time.monotonic() < 1:
                yield from ((name, NO_TIME, "") for name in batch)
                continue
            started = []
            for number, name in enumerate(batch, first):
                file = Path(folder, str(number))
                work = partial(note, section.make, (name, where, steps), file)
                started.append((get_context("fork").Process(target=work, daemon=True), file))
                started[-1][0].start()
            for name, (child, file) in zip(batch, started, strict=True):
                row = ended(child, file, limit, NO_TIME if limit == deadline else NO_END)
                said = file.with_suffix(".said")
                yield name, row, said.read_text("utf-8", "replace") if said.exists() else ""


def note(make: Callable[..., Row], args: tuple[str, str, int], file: Path) -> None:
    """Write a row to a file, and what is said meanwhile to another; this process does no more."""
    os.setsid()
    sys.stdout = sys.stderr = said = file.with_suffix(".said").open("w", encoding="utf-8")
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    faulthandler.enable(said)
    torch.set_num_threads(1)
    file.write_text(json.dumps(make(*args)), encoding="utf-8")


def ended(child: BaseProcess, file: Path, limit: float, otherwise: Row) -> Row:
    """Return the row that a process has written, once it and all that it began have ended."""
    assert child.pid
    child.join(max(0.0, limit - time.monotonic()))
    hung = child.is_alive()
    if hung:
        os.kill(child.pid, signal.SIGABRT)  # it says where it is
        child.join(1)
    for kill in (partial(os.killpg, child.pid, signal.SIGKILL), child.kill):
        with suppress(ProcessLookupError):
            kill()
    child.join()
    if hung:
        return otherwise
    if not file.exists():
        return [], f"failed, with status {child.exitcode}"
    cells, verdict = json.loads(file.read_text(encoding="utf-8"))
    return cells, verdict


def page(options: argparse.Namespace, verdicts: Counter[str]) -> Iterator[str]:
    """Yield the lines of the page, and count its verdicts."""
    is_cuda = options.device == "cuda"
    name = returned_by_fork(torch.cuda.get_device_name) if is_cuda else "the simulated device"
    yield f"# gradscope on {name}\n"
    yield f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores."
    begun = time.monotonic()
    for section in sections(options.programs):
        since, failures = time.monotonic(), []
        columns = [*section.columns.split(" | "), "verdict"]
        yield f"\n## {section.title}\n"
        yield f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 2)}---|"
        for row, (cells, verdict), said in made(section, options.device, options.steps):
            verdicts[re.split(r"\W", verdict)[0]] += 1
            cells = cells or ["-"] * (len(columns) - 2)
            yield f"| {' | '.join([row, *cells, verdict.replace('|', '/')])} |"
            if verdict.startswith("failed"):
                last = "\n".join(said.splitlines()[-SAID:])
                failures.append(f"\n{row}:\n\n```\n{last}\n```")
        yield from failures
        yield f"\n{time.monotonic() - since:.0f} of {section.seconds} s."
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    yield f"\nRows: {counts}; in all {time.monotonic() - begun:.0f} s."


def main() -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = "cuda" if returned_by_fork(torch.cuda.is_available) else "sim"
    parser.add_argument("--device", choices=("cuda", "sim"), default=here)
    parser.add_argument("--programs", type=int, default=60, help="random programs")
    parser.add_argument("--steps", type=int, default=300, help="most steps of a loop in a round")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page to this, too")
    options = parser.parse_args()
    if options.device == "sim" and (lacking := device.missing()):
        parser.error(lacking)
    if options.device == "sim":
        device.library()  # builds it, outside the time of any row
    verdicts, lines = Counter[str](), list[str]()
    for line in page(options, verdicts):
        print(line, flush=True)
        lines.append(line + "\n")
        if options.write:  # each time: what ends this process leaves a page
            options.write.write_text("".join(lines), encoding="utf-8")
    return int(bool(verdicts["differs"] or verdicts["failed"]))


if __name__ == "__main__":
    sys.exit(main())
