"""What watching costs in loops: iterations alike, of other sizes, or of another length each time.

    python benchmarks/loops.py                              # prints the table
    python benchmarks/loops.py --write docs/performance.md  # writes the page
    python benchmarks/loops.py --only gan --rounds 15

Each loop runs in one process in blocks: plain, with graphs read and nothing else (``least.py``),
then watched, three times over, with the same random numbers, and once in torch's anomaly mode. The
figures are medians of short rounds, watched over plain, and best against best in brackets, after
iterations that are not timed; what those first iterations cost more in all is a column of its own.
Times are of the processor, so that a machine that is busy with other things disturbs them less.
Apart from that, the parameters after each step and the peak of allocated bytes are compared, plain
and watched.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from least import reading
from loop_programs import LOOPS, SAME, SHAPE, SIZES, UNDER_HOOKS, Iteration, tiny_mlp
from overhead import highest
from sampling import microseconds
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

import gradscope

WARM_UP = 30
BLOCKS = 3
SECONDS = 0.08  # of a round, about
IDLE = 0.5  # processes that run or wait to, at the most


@dataclass(frozen=True)
class Row:
    """One loop in one way: milliseconds of a plain iteration, and what the watch makes of it."""

    name: str
    way: str
    plain: float
    ratio: float
    best: float
    least: float
    anomaly: float
    first: float
    lifted: bool
    same: bool


def seconds(iteration: Iteration, way: str, count: int, seed: int) -> float:
    """Return the CPU seconds of some iterations."""
    numbers = random.Random(seed)

    def near(number: int) -> int:
        return numbers.randrange(max(1, number // 2), number * 3 // 2 + 1)

    def just(number: int) -> int:
        return number

    size, length = (near if way == SIZES else just), (near if way == SHAPE else just)
    start = time.process_time()
    for _ in range(count):
        iteration(size, length)
    return time.process_time() - start


def measure(name: str, way: str, rounds: int) -> Row:
    torch.manual_seed(0)
    iteration = LOOPS[name][0]()
    seconds(iteration, way, 5, 0)
    count = max(2, int(SECONDS / (seconds(iteration, way, 5, 0) / 5)))
    plain: list[float] = []
    read: list[float] = []
    watched: list[float] = []
    more: list[float] = []
    lifted = True
    for _ in range(BLOCKS):
        plain += [seconds(iteration, way, count, seed) for seed in range(rounds)]
        with nullcontext() if name in UNDER_HOOKS else reading():
            read += [seconds(iteration, way, count, seed) for seed in range(rounds)]
        before = seconds(iteration, way, WARM_UP, 99)
        with gradscope.watch() as scope:
            more.append(seconds(iteration, way, WARM_UP, 99) - before)
            watched += [seconds(iteration, way, count, seed) for seed in range(rounds)]
            assert scope._session is not None
            lifted = lifted and scope._session.state.lifting.on
    middle = statistics.median(plain)
    with torch.autograd.set_detect_anomaly(True):
        anomaly = statistics.median(seconds(iteration, way, count, s) for s in range(3))
    ratio, best = statistics.median(watched) / middle, min(watched) / min(plain)
    least = min(read) / min(plain)
    each = 1000 * middle / count
    same = results(name, way, watched=True) == results(name, way, watched=False)
    return Row(name, way, each, ratio, best, least, anomaly / middle, min(more), lifted, same)


def results(name: str, way: str, *, watched: bool) -> tuple[str, int]:
    """Return a digest of all parameters after each step, and the peak of allocated bytes."""
    digest = hashlib.sha256()

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().numpy().tobytes())

    torch.manual_seed(0)
    iteration = LOOPS[name][0]()
    handle = register_optimizer_step_post_hook(stepped)
    with (
        gradscope.watch() if watched else nullcontext(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        seconds(iteration, way, WARM_UP, 1)
    handle.remove()
    return digest.hexdigest(), highest(profiler)


def table(rows: list[Row]) -> str:
    lines = [
        f"| loop | plain, ms | same | sizes | shape | only read | anomaly | first {WARM_UP}, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(row.name for row in rows):
        of_loop = {row.way: row for row in rows if row.name == name}
        cells = [
            f"{row.ratio:.2f} ({row.best:.2f}){'' if row.lifted else ' *'}"
            if (row := of_loop.get(way))
            else "-"
            for way in (SAME, SIZES, SHAPE)
        ]
        least = max(row.least for row in of_loop.values())
        cells.append("-" if name in UNDER_HOOKS else f"{least:.2f}")
        cells.append(f"{next(iter(of_loop.values())).anomaly:.1f}")
        most = max(row.first for row in of_loop.values())
        plain = next(iter(of_loop.values())).plain
        lines.append(f"| {name} | {plain:.2f} | {' | '.join(cells)} | +{max(most, 0):.2f} |")
    return "\n".join(lines)


def graph_of_a_transformer() -> Tensor:
    layer = nn.TransformerEncoderLayer(32, 4, 128, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    loss: Tensor = model(torch.randn(2, 8, 32)).square().mean()
    return loss


def chain() -> Tensor:
    x: Tensor = nn.Parameter(torch.rand(4))
    for number in range(20_000):
        x = x.sin() if number % 2 else x * 1.0001
    return x.sum()


def walk(loss: Tensor) -> int:
    """Visit every node, and do nothing else."""
    seen = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [target for target, _ in node.next_functions]
    return len(seen)


def looks() -> str:
    """Return what check and snapshot cost on new graphs, beside a bare walk in Python."""
    lines = [
        "| graph | nodes | bare walk | walk again | `check` | `snapshot` |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, build in (("Transformer, 24 layers", graph_of_a_transformer), ("chain", chain)):
        times: list[list[float]] = [[], [], [], []]
        for _ in range(9):
            for looks_at, of_look in zip(
                ((walk,), (walk, walk), (gradscope.check,), (gradscope.snapshot,)),
                times,
                strict=True,
            ):
                loss = build()
                for look in looks_at:
                    start = time.process_time()
                    look(loss)
                of_look.append(time.process_time() - start)
        first, again, *others = map(min, times)
        nodes = walk(build())
        cells = [f"{1e6 * each / nodes:.2f}" for each in (first, again)]
        cells += [f"{1e6 * each / nodes:.2f} ({each / first:.0f}x)" for each in others]
        lines.append(f"| {name} | {nodes:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parts() -> str:
    """Return where the fixed cost of a call goes, in the loop of the tiny MLP."""
    iteration = tiny_mlp()
    profiles = [microseconds(lambda: iteration(int, int), 200, 20_000) for _ in range(3)]
    times = min(profiles, key=lambda profile: sum(profile.values()))
    rows = [f"| {part} | {time:.0f} µs |" for part, time in times.items()]
    return "\n".join(["| part | an iteration |", "|---|---:|", *rows])


def starts() -> str:
    """Return the CPU seconds of commands that need no torch."""
    lines = ["| command | CPU seconds |", "|---|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "run.gscope"
        with gradscope.watch(save=recording):
            tiny_mlp()(lambda number: number, lambda number: number)
        commands = (["--help"], ["explain", "GS101"], ["rules"], ["report", str(recording)])
        for command in commands:
            times = []
            for _ in range(3):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [sys.executable, "-m", "gradscope", *command], check=True, capture_output=True
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            shown = " ".join(part for part in command if not part.startswith(folder))
            lines.append(f"| `gradscope {shown}` | {min(times):.2f} |")
    return "\n".join(lines)


PAGE = """# Performance

What `gradscope.watch()` costs: the time of whole training steps (forward, backward, optimizer),
watched over plain; best against best in brackets. `python benchmarks/loops.py --write
docs/performance.md` writes this page; run it on your machine for your figures.

Measured with {machine},
one thread, while the machine {busy}. A figure
varies by a tenth or two from run to run, on a machine shared with others now and then by more.

{table}

*same*: every iteration is like the one before. *sizes*: batches or sequences of another size each
time, with the same operations. *shape*: another number of operations each time. *only read*: each
backward graph is walked from Python before the call, every saved tensor is read, and nothing else
is done: no tool that reads graphs so can cost less (best against best, in the worst of the ways).
*anomaly* is torch's `detect_anomaly`. The last column is what the first {warm_up} iterations cost
more in all, in seconds, in the worst of the ways: there the watch looks at everything in full. `*`
marks loops in which the saved-tensor hooks stay in place
([why](how-it-works.md#while-nothing-new-comes)).

{same}

## What is left

A ratio has two parts. Each node costs about a microsecond: the graph is walked from Python, every
saved tensor is read, and torch makes a Python object for each. *only read* is this part alone. It
shows where operations are so small that their forward and backward take a few microseconds, as with
1,000 scalar operations. And a backward call costs a fixed time whatever its graph: {fixed:.0f} µs
an iteration of the tiny MLP here, with the step of its optimizer. That shows in loops of less than
a millisecond. (Where an iteration is long it is several times as much, as what gradscope needs is
not in the processor's caches by then: some hundredths of the convolutional network's.) Both are
time in Python. A profile by samples of the tiny MLP's loop:

{parts}

The first iterations cost most where graphs of hundreds of nodes are never alike: hooks on every
saved tensor, a full look at every node, and a picture of the first graphs for the recording.

## On a device

No figure on CUDA exists yet: no GPU was at hand. On the simulated accelerator of `tests/device`,
whose backward nodes run in threads of the engine's as on CUDA, `python -m benchmarks.on_device`
measures the loops in which such threads build nodes or run hooks. Of one run, in microseconds a
step:

| loop | CPU | watched | device | watched |
|---|---:|---:|---:|---:|
| gradient penalty | 401 | 711 (1.77x) | 586 | 924 (1.58x) |
| reentrant checkpoints | 771 | 1415 (1.83x) | 1001 | 1692 (1.69x) |
| hooks that compute | 225 | 346 (1.53x) | 333 | 464 (1.39x) |

As many calls run without hooks there as on the CPU, and a watch makes the host wait for none of
them.

## Looks on demand

`check` reads what each node saved, and looks in full only where that finds something. `snapshot`
makes plain data of every node, saved tensor and edge. Both are compared with a walk in Python that
visits every node of a new graph and does nothing else, in microseconds a node. (A second walk costs
less, as torch has made its Python objects by then.)

{looks}

Torch shows a saved tensor only through a Python object, made for the purpose, that says whether
hooks of the program's are on it; this object alone costs about as much as the walk to its node.
Most of `snapshot` goes into some twenty questions to torch about each node and what it saved.

## Commands

These import no torch.

{starts}
"""


def sameness(rows: list[Row]) -> str:
    """Say in which loops the watch left parameters and memory alone."""
    compared = (
        "the parameters after every step are the same bit for bit, and so is the peak of the\n"
        "bytes that torch's allocator gives out"
    )
    other = [f"{row.name} ({row.way})" for row in rows if not row.same]
    return f"In all of them {compared}." if not other else f"But in {', '.join(other)}, {compared}."


def more_than_reading(row: Row) -> float:
    """Return the microseconds of an iteration that the watch takes apart from reading graphs."""
    return 1000 * row.plain * (row.best - row.least)


def page(rows: list[Row], busy: str) -> str:
    fixed = [more_than_reading(row) for row in rows if row.name == "tiny MLP"]
    python, cores = platform.python_version(), os.cpu_count()
    machine = (
        f"torch {torch.__version__}, Python {python}, {platform.machine()}, {cores} cores, CPU"
    )
    return PAGE.format(
        machine=machine,
        busy=busy,
        table=table(rows),
        fixed=min(fixed, default=0.0),
        warm_up=WARM_UP,
        parts=parts(),
        same=sameness(rows),
        looks=looks(),
        starts=starts(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what watching costs in loops.")
    parser.add_argument("--rounds", type=int, default=4, help="rounds in each of the blocks")
    parser.add_argument("--only", default="", help="only loops whose name contains this")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the page to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    busy = "had nothing else to do" if os.getloadavg()[0] < IDLE else "was busy with other things"
    rows = []
    for name, (_, ways) in LOOPS.items():
        if options.only.lower() in name.lower():
            for way in ways:
                row = measure(name, way, options.rounds)
                rows.append(row)
                line = f"{name:36} {way:6} {row.plain:8.2f} ms {row.ratio:6.2f}"
                same = "same results" if row.same else "OTHER RESULTS"
                print(f"{line} ({row.best:.2f}), first +{row.first:.2f} s, {same}", flush=True)
    print(table(rows))
    if options.write:
        options.write.write_text(page(rows, busy), encoding="utf-8")


if __name__ == "__main__":
    main()
