"""What a watch holds in long loops: the memory of the process, and the size of the recording.

    python benchmarks/memory.py                      # a million iterations of each loop; an hour
    python benchmarks/memory.py --iterations 100000
    python benchmarks/memory.py --only alike

Each loop runs in two processes of its own, plain and watched. The figures are what each has grown
by since its first iterations, at four points of the run, and the size of the recording.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gradscope

SETTLED = 1_000  # iterations, or a tenth of all
LONGEST = 2_000  # operations in a graph that grows
POINTS = 4
PAGE = 4096


def alike(numbers: random.Random, x: Tensor) -> Iterator[Tensor]:
    """Yield the same loss again and again."""
    while True:
        yield (x * 2).sin().sum()


def never_alike(numbers: random.Random, x: Tensor) -> Iterator[Tensor]:
    """Yield losses of another size and another number of operations each time."""
    operations: list[Callable[[Tensor], Tensor]] = [torch.sin, torch.exp, torch.tanh]
    while True:
        out = x[: numbers.randrange(1, len(x))]
        for _ in range(numbers.randrange(1, 12)):
            out = numbers.choice(operations)(out)
        yield out.sum()


def growing(numbers: random.Random, x: Tensor) -> Iterator[Tensor]:
    """Yield losses of one operation more each time."""
    length = 0
    while True:
        length = length % LONGEST + 1
        out = x
        for _ in range(length):
            out = out.sin()
        yield out.sum()


LOOPS: dict[str, tuple[Callable[[random.Random, Tensor], Iterator[Tensor]], float]] = {
    "alike": (alike, 1),
    "never alike": (never_alike, 1),
    "growing": (growing, 0.01),
}
"""Each loop, and how large a part of the iterations it runs."""


def resident() -> int:
    """Return the bytes of the process that are in memory; Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def run(name: str, iterations: int, *, watched: bool) -> dict[str, Any]:
    """Run one loop in this process."""
    torch.set_num_threads(1)
    parameter = nn.Parameter(torch.rand(16))
    optimizer = torch.optim.SGD([parameter], lr=1e-4)
    losses = LOOPS[name][0](random.Random(0), parameter)
    begun, grown = 0, []
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "run.gscope"
        with gradscope.watch(save=recording) if watched else nullcontext():
            for number in range(iterations):
                optimizer.zero_grad()
                next(losses).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if number == min(SETTLED, iterations // 10):
                    begun = resident()
                if (number + 1) % (iterations // POINTS) == 0:
                    grown.append(resident() - begun)
        return {"grown": grown, "recording": recording.stat().st_size if watched else 0}


def in_process(name: str, iterations: int, *, watched: bool) -> dict[str, Any]:
    """Run one loop in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--iterations", str(iterations)]
    done = subprocess.run(
        [*command, *(["--watched"] if watched else [])], check=True, stdout=subprocess.PIPE
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a watch holds in long loops.")
    parser.add_argument("--iterations", type=int, default=1_000_000, help="of each loop")
    parser.add_argument("--only", default="", help="only loops whose name begins with this")
    parser.add_argument("--one", choices=LOOPS, help=argparse.SUPPRESS)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one, options.iterations, watched=options.watched)))
        return
    print("| loop | iterations | plain, MB at each quarter | watched | recording |")
    print("|---|---:|---:|---:|---:|")
    for name, (_, part) in LOOPS.items():
        if not name.startswith(options.only):
            continue
        count = int(options.iterations * part)
        plain, watched = (in_process(name, count, watched=w) for w in (False, True))
        cells = [", ".join(f"{each / 1e6:.1f}" for each in of["grown"]) for of in (plain, watched)]
        written = f"{watched['recording'] / 1e6:.2f} MB"
        print(f"| {name} | {count:,} | {cells[0]} | {cells[1]} | {written} |", flush=True)


if __name__ == "__main__":
    main()
