"""What watching costs in loops: iterations alike, of other sizes, or of another length each time.

    python benchmarks/loops.py                              # prints the table
    python benchmarks/loops.py --write docs/performance.md  # writes the page
    python benchmarks/loops.py --only gan --rounds 15

Each loop runs in one process, plainly and in other ways, which take turns, round by round and in
changing order: a machine that is busy with other things slows all of them alike. The figures are
medians of the rounds' own ratios to the plain iterations of the same round, with the same random
numbers. Times are of the processor. Apart from that, the parameters after each step and the peak of
allocated bytes are compared, plain and watched.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # quiets torch's profiler; must be set this early

import torch
from least import reading
from loop_programs import LOOPS, SAME, SHAPE, SIZES, UNDER_HOOKS, Iteration, tiny_mlp
from sampling import microseconds
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

import gradscope
from gradscope.collect.steady import READ_EACH

WARM_UP, AT_LEAST = 300, 30  # iterations that are not timed: they take LONG seconds at the most
MOST, FEW = 2_000, 15  # iterations
SHORT, LONG = 0.1, 1.0  # seconds of plain iterations, about; fewer where MOST take less
IDLE = 0.5  # processes that run or wait to, at the most

Contexts = dict[str, Callable[[], AbstractContextManager[Any]]]
BUDGETS: Contexts = {f"{share} %": partial(gradscope.watch, budget=share) for share in (10, 3, 1)}
OTHERS: Contexts = {
    "only read": reading,
    "hooks": partial(saved_tensors_hooks, lambda saved: saved, lambda packed: packed),
    "anomaly": partial(torch.autograd.set_detect_anomaly, True),
}
COMPARED = (nullcontext, gradscope.watch, BUDGETS["3 %"])
PLAIN, FIRST, TORCHLENS = "plain, ms", "first", "torchlens"
COLUMNS = {
    PLAIN: ".2f",
    **dict.fromkeys((SAME, "varied"), ".2f"),
    FIRST: "+.2f",
    **dict.fromkeys((*BUDGETS, *OTHERS), ".2f"),
    **({TORCHLENS: ".0f"} if find_spec(TORCHLENS) else {}),
}
"""How the figures are shown."""


@dataclass(frozen=True)
class Row:
    """The figures of one loop by columns, and what a watch changed in its results, in which way."""

    name: str
    figures: dict[str, float]
    changed: list[str]


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


def comparisons(name: str, each: float) -> Iterator[tuple[str, int, float, Contexts]]:
    """Yield how iterations of ``each`` so many seconds differ, how many come first, the seconds of
    the others, and in what they run beside plain ones.
    """
    first = max(AT_LEAST, min(WARM_UP, int(LONG / each)))
    others = {
        which: context
        for which, context in OTHERS.items()
        if not (context is reading and name in UNDER_HOOKS)
    }
    yield SAME, first, SHORT, {SAME: gradscope.watch}
    yield LOOPS[name][1][-1], first, SHORT, {"varied": gradscope.watch}
    yield SAME, 0, SHORT, others
    yield SAME, 0, LONG, BUDGETS


def measure(name: str, rounds: int) -> Row:
    torch.manual_seed(0)
    iteration = LOOPS[name][0]()
    seconds(iteration, SAME, 5, 0)
    each = seconds(iteration, SAME, 5, 0) / 5
    figures: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for way, warm_up, enough, contexts in comparisons(name, each):
            count = min(MOST, max(2, int(enough / each)))
            turns = [PLAIN, *contexts]
            turn = number % len(turns)
            spent: dict[str, tuple[float, float]] = {}
            for which in turns[turn:] + turns[:turn]:
                gc.collect()
                with contexts.get(which, nullcontext)():
                    first = seconds(iteration, way, warm_up, rounds)
                    spent[which] = first, seconds(iteration, way, count, number)
            first, plain = spent.pop(PLAIN)
            if way == SAME:
                figures[PLAIN].append(1000 * plain / count)
            for which, (of_first, others) in spent.items():
                figures[which].append(others / plain)
                if warm_up:
                    figures[FIRST].append(of_first - first)
    if TORCHLENS in COLUMNS:
        figures[TORCHLENS] = [logged(iteration) / each]
    medians = {column: statistics.median(found) for column, found in figures.items()}
    changed = [
        f"{what}, {way}"
        for way in (SAME, LOOPS[name][1][-1])
        for what in changes(*(results(name, way, context) for context in COMPARED))
    ]
    return Row(name, medians, changed)


def changes(*found: tuple[str, int]) -> list[str]:
    """Return in what some results differ."""
    kinds = zip(("parameters", "peak"), zip(*found, strict=True), strict=True)
    return [f"{kind} {values}" for kind, values in kinds if len({*values}) > 1]


def logged(iteration: Iteration) -> float:
    """Return the CPU seconds of an iteration that torchlens logs as if it were a forward pass."""
    import torchlens
    from torchlens.backends.torch.wrappers import wrapped

    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            iteration(int, int)
            return x + 1

    def spent() -> float:
        start = time.process_time()
        torchlens.trace(Whole(), torch.zeros(1))
        return time.process_time() - start

    with warnings.catch_warnings(), wrapped():
        warnings.simplefilter("ignore")
        return min(spent(), spent())


def highest(profiler: profile) -> int:
    """Return the peak of the bytes that torch's allocator gave out in a profile."""
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    return max(itertools.accumulate(size for _, size in changes))


def results(name: str, way: str, context: Any) -> tuple[str, int]:
    """Return a digest of all parameters after each step, and the peak of allocated bytes."""
    digest = hashlib.sha256()

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().numpy().tobytes())

    torch.manual_seed(0)
    iteration = LOOPS[name][0]()
    handle = register_optimizer_step_post_hook(stepped)
    gc.collect()  # what went before would be freed meanwhile
    with (
        context(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        seconds(iteration, way, FEW, 1)
    handle.remove()
    return digest.hexdigest(), highest(profiler)


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(rows: list[Row]) -> str:
    lines = [line(["loop", *COLUMNS]), "|---|" + "---:|" * len(COLUMNS)]
    for row in rows:
        figures = (
            format(row.figures[column], shape) if column in row.figures else "-"
            for column, shape in COLUMNS.items()
        )
        lines.append(line([row.name, *figures]))
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


OF_TORCHLENS = """- *torchlens*: each step within a `torchlens.trace`, which logs every operation
  with its values. It is made for single forward passes, not to stay on."""
NO_TORCHLENS = "- torchlens, which logs forward passes, has a column only where it is installed."

PAGE = """# Performance

What `gradscope.watch()` costs: the time of whole training steps (forward, backward, optimizer) as
ratios to the plain ones. `python benchmarks/loops.py --write docs/performance.md` writes this page;
run it on your machine for your figures.

Measured with {machine},
one thread, while the machine {busy}: medians of {rounds}
rounds, in which all ways take turns in one process. A figure varies by a tenth or two from run to
run, on a machine shared with others now and then by more.

{table}

- *same*: watched, every iteration like the one before. *varied*: batches or sequences of another
  size each time, or where a loop can, another number of operations. Both after {warm_up} iterations
  that are not timed (or those of {long:.0f} s, but {at_least} at least). *first* is what those cost
  more in all, in seconds: there the watch looks at everything in full.
- *10 %*, *3 %* and *1 %*: watched with that `budget`, from the first iteration on, for {most:,}
  iterations or about {long:g} s of plain ones. See [below](#within-a-budget).
- *only read*: each backward graph is walked from Python before the call, every saved tensor is
  read, and nothing else is done: no tool that reads graphs so can cost less.
- *hooks*: `torch.autograd.graph.saved_tensors_hooks` with two functions that return what they are
  given. *anomaly*: torch's `detect_anomaly`. Neither reports what gradscope reports.
{torchlens}

{same}

## Within a budget

Of a run of 200 calls and more `--verbose` says what share of the loop gradscope took, by its own
clock at some of the calls and steps, as any report does where that is much: less than the ratios
above, as a program whose caches were emptied is slower as well.

With `gradscope.watch(budget=10)` or `gradscope run --budget 10` a watch counts its own time, and
does not look at a call that comes when 10 % of the time since its beginning are spent. What the
loops above took, the median of them and the most:

{budgets}

What goes beyond a budget has three reasons. The first calls are looked at whatever it is, which
takes some milliseconds, and a tenth of a second where a graph has a thousand nodes: it shows in
runs of a second, as these are, and a longer run makes up for it. A call that is not looked at still
passes through Python, and so does the optimizer's step: that is never counted, and is up to
{passed:.0f} µs an iteration of the tiny MLP here. And what a look costs the program beside its own
time, in caches that are emptied, is counted by a rough factor.

## What is left

A ratio has two parts. Each node costs about half a microsecond, as the graph is walked from Python,
and torch makes a Python object for each; about a microsecond where what it saved is read (*only
read* is that alone), as under hooks of the program's own. It shows where operations
are so small that their forward and backward take a few microseconds, as with 1,000 scalar
operations. And a backward call costs a fixed time whatever its graph: {fixed:.0f} µs an iteration
of the tiny MLP here, with the step of its optimizer. That shows in loops of less than a
millisecond. (Where an iteration is long it is several times as much, as what gradscope needs is not
in the processor's caches by then: some hundredths of the convolutional network's.) Both are time in
Python. A profile by samples of the tiny MLP's loop:

{parts}

A walk in C++ against torch's headers took 13 to 46 ns a node, where Python takes a microsecond. It
would see what `CopySlices` and foreach nodes wrap, which Python cannot. It reads private members,
and needs a build for each version of torch: gradscope has none.

In a steady loop one call in {read_each} (and one each tenth of a second) is read, and of the others
the numbers of the nodes alone, which say for certain whether something of the graph was freed. A
step in the midst of a graph that did not come in the iterations before shows there as well, and so
does a change in place by an operation that is differentiated. What they cannot show is a tensor
modified under `no_grad()` that was not modified in the iterations before: that is found after the
engine has raised, in the same words, and says so.

The first iterations cost most where graphs of hundreds of nodes are never alike: hooks on every
saved tensor, a full look at every node, and a picture of the first graphs for the recording.

## On a device

No figure on CUDA exists yet: no GPU was at hand. For the day when one is,
`python -m benchmarks.on_device --write page.md` makes a page of what a watch does and costs there.
Without a GPU it runs on the simulated accelerator of `tests/device`, whose backward nodes run in
threads of the engine's as on CUDA. Of one run, in microseconds a step, the loops in which such
threads build nodes or run hooks:

| loop | CPU | watched | device | watched |
|---|---:|---:|---:|---:|
| gradient penalty | 198 | 411 (2.08x) | 461 | 728 (1.58x) |
| reentrant checkpoints | 385 | 792 (2.06x) | 616 | 1148 (1.86x) |
| hooks that compute | 98 | 186 (1.91x) | 228 | 342 (1.50x) |

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
Most of `snapshot` goes into some twenty questions to torch about each node and what it saved. What
it returns are columns of numbers, about 45 bytes a node; nodes and edges are made when they are
asked for.

## A short run

A script of a few steps mostly pays for the start; these figures are CPU time, measured by hand.
`gradscope run train.py` imports about 0.2 s of Python before the program begins and up to 0.2 s
with torch; any option of `run` needs the parser of the command line, and that 0.15 s more. Of 12
examples and test programs of 2 to 400 steps, which take 1.3 to 5 s by themselves, the median paid
0.6 s with an option, and the most, where 400 steps run, 1.8 s.

A run with a hazard is rehearsed after its end, for 10 seconds at most or three times what it took
(up to 20), and the report says for how long. Most of it, 2 s, is another import of torch and its
compiler, by a process of which all tries are copies: a try of a small program takes 0.1 to 0.2 s.
`gradscope fix --write` of scripts of 15 to 28 lines takes 3.2 to 3.5 s in all.

## Commands

These import no torch.

{starts}
"""


def sameness(rows: list[Row]) -> str:
    """Say in which loops a watch left parameters and memory alone."""
    other = "; ".join(f"{row.name}: {', '.join(row.changed)}" for row in rows if row.changed)
    but = f" but these ({other})" if other else ""
    return f"""In all of them{but} the parameters after every step are the same bit for bit, plain,
watched, and watched with a budget of 3 %, and so is the peak of the bytes that torch's allocator
gives out."""


def kept(rows: list[Row]) -> str:
    """Say what loops take within each budget."""
    lines = ["| budget | median | most |", "|---:|---:|---|"]
    for share in BUDGETS:
        most, name = max((row.figures[share], row.name) for row in rows)
        median = statistics.median(row.figures[share] for row in rows)
        lines.append(line([share, f"{median:.2f}", f"{most:.2f} ({name})"]))
    return "\n".join(lines)


def page(rows: list[Row], rounds: int, busy: str) -> str:
    python, cores = platform.python_version(), os.cpu_count()
    machine = (
        f"torch {torch.__version__}, Python {python}, {platform.machine()}, {cores} cores, CPU"
    )
    tiny = next(row.figures for row in rows if row.name == "tiny MLP")
    plain = tiny[PLAIN]
    return PAGE.format(
        machine=machine,
        busy=busy,
        rounds=rounds,
        table=table(rows),
        torchlens=OF_TORCHLENS if TORCHLENS in COLUMNS else NO_TORCHLENS,
        most=MOST,
        long=LONG,
        fixed=1000 * plain * (tiny[SAME] - tiny["only read"]),
        passed=1000 * plain * (tiny["1 %"] - 1),
        budgets=kept(rows),
        warm_up=WARM_UP,
        at_least=AT_LEAST,
        read_each=READ_EACH,
        parts=parts(),
        same=sameness(rows),
        looks=looks(),
        starts=starts(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what watching costs in loops.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all ways by turns")
    parser.add_argument("--only", default="", help="only loops whose name contains this")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the page to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    busy = "had nothing else to do" if os.getloadavg()[0] < IDLE else "was busy with other things"
    rows: list[Row] = []
    for name in LOOPS:
        if options.only.lower() in name.lower():
            rows.append(measure(name, options.rounds))
            *heading, row = table(rows[-1:]).splitlines()
            changed = f" OTHER RESULTS: {', '.join(rows[-1].changed)}" if rows[-1].changed else ""
            print(*heading[: 2 * (len(rows) == 1)], row + changed, sep="\n", flush=True)
    if options.write:
        options.write.write_text(page(rows, options.rounds, busy), encoding="utf-8")


if __name__ == "__main__":
    main()
