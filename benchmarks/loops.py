"""What watching costs in loops: iterations alike, of other sizes, or of another length each time.

    python benchmarks/loops.py                              # prints the table
    python benchmarks/loops.py --write docs/performance.md  # writes the page
    python benchmarks/loops.py --only gan --rounds 15

Each loop runs in one process in blocks: plain, then watched, twice over, with the same random
numbers, and once in torch's anomaly mode. The figures are medians of short rounds, watched over
plain, and best against best in brackets, after iterations that are not timed; what those first
iterations cost more in all is a column of its own. Times are of the processor, so that a machine
that is busy with other things disturbs them less.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name
from torch.utils.checkpoint import checkpoint

import gradscope

WARM_UP = 30
BLOCKS = 2
SECONDS = 0.08  # of a round, about

Draw = Callable[[int], int]
"""Returns a number near the one given, or that very number where iterations are alike."""

Iteration = Callable[[Draw, Draw], None]
"""One step of training; the first argument draws sizes, the second draws numbers of operations."""


@dataclass(frozen=True)
class Row:
    """One loop in one way: milliseconds of a plain iteration, and what the watch makes of it."""

    name: str
    way: str
    plain: float
    ratio: float
    best: float
    anomaly: float
    first: float
    lifted: bool


def trained(parameters: list[nn.Parameter], loss: Callable[[Draw, Draw], Tensor]) -> Iteration:
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def iteration(size: Draw, length: Draw) -> None:
        value = loss(size, length)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return iteration


def transformer(width: int, batch: int, tokens: int) -> Iteration:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return trained(
        list(model.parameters()),
        lambda size, _: model(torch.randn(batch, size(tokens), width)).square().mean(),
    )


def convolutions() -> Iteration:
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    return trained(
        list(model.parameters()),
        lambda size, _: model(torch.randn(size(16), 3, 32, 32)).square().mean(),
    )


def lstm_cell() -> Iteration:
    cell = nn.LSTMCell(64, 128)

    def loss(size: Draw, length: Draw) -> Tensor:
        batch = size(16)
        hidden = state = torch.zeros(batch, 128)
        for step in torch.randn(length(50), batch, 64):
            hidden, state = cell(step, (hidden, state))
        return hidden.square().mean()

    return trained(list(cell.parameters()), loss)


def scalar_operations() -> Iteration:
    start = nn.Parameter(torch.rand(4))

    def loss(_: Draw, length: Draw) -> Tensor:
        x: Tensor = start
        for number in range(length(1000)):
            x = x.sin() if number % 2 else x * 1.0001
        return x.sum()

    return trained([start], loss)


def tiny_mlp() -> Iteration:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    return trained(
        list(model.parameters()), lambda size, _: model(torch.randn(size(16), 8)).square().mean()
    )


def gan(width: int, noise: int, batch: int) -> Iteration:
    maker = nn.Sequential(nn.Linear(noise, width), nn.ReLU(), nn.Linear(width, 32))
    judge = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 1))
    of_maker = torch.optim.SGD(maker.parameters(), lr=1e-4)
    of_judge = torch.optim.SGD(judge.parameters(), lr=1e-4)

    def iteration(size: Draw, _: Draw) -> None:
        fake = maker(torch.randn(size(batch), noise))
        of_judge.zero_grad()
        judge(fake.detach()).square().mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        judge(fake).square().mean().backward()
        of_maker.step()

    return iteration


def solver() -> Iteration:
    field = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

    def loss(size: Draw, length: Draw) -> Tensor:
        y, step = torch.randn(size(8), 4), 0.1
        for _ in range(length(20)):
            first = field(y)
            second = field(y + step * first)
            error = float((step * (second - first)).detach().abs().max())
            y = y + step * (first + second) / 2
            step *= 1.1 if error < 0.01 else 0.9
        return y.square().mean()

    return trained(list(field.parameters()), loss)


def gradient_penalty() -> Iteration:
    judge = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss(size: Draw, _: Draw) -> Tensor:
        x = torch.randn(size(32), 16, requires_grad=True)
        out: Tensor = judge(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        penalty: Tensor = (slope.norm(dim=1) - 1).square().mean()
        return out.mean() + penalty

    return trained(list(judge.parameters()), loss)


def inner_loop() -> Iteration:
    shapes = ((40, 1), (40,), (1, 40), (1,))
    slow = [nn.Parameter(torch.randn(shape) * 0.1) for shape in shapes]

    def error(weights: list[Tensor], rows: int) -> Tensor:
        x = torch.randn(rows, 1)
        hidden = F.linear(x, weights[0], weights[1]).tanh()
        return F.mse_loss(F.linear(hidden, weights[2], weights[3]), x.sin())

    def loss(size: Draw, length: Draw) -> Tensor:
        fast: list[Tensor] = list(slow)
        for _ in range(length(4)):
            slopes = torch.autograd.grad(error(fast, size(10)), fast, create_graph=True)
            fast = [weight - 0.01 * slope for weight, slope in zip(fast, slopes, strict=True)]
        return error(fast, size(10))

    return trained(slow, loss)


def two_losses() -> Iteration:
    body, one, other = nn.Linear(8, 32), nn.Linear(32, 1), nn.Linear(32, 1)
    parameters = [*body.parameters(), *one.parameters(), *other.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def iteration(size: Draw, _: Draw) -> None:
        hidden = body(torch.randn(size(16), 8)).tanh()
        optimizer.zero_grad()
        one(hidden).square().mean().backward(retain_graph=True)
        other(hidden).square().mean().backward()
        optimizer.step()

    return iteration


def policy_epoch() -> Iteration:
    body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    actor, critic = nn.Linear(64, 4), nn.Linear(64, 1)
    parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4)

    def iteration(size: Draw, length: Draw) -> None:
        states = torch.randn(size(128), 8)
        rewards = torch.randn(len(states))
        with torch.no_grad():
            chosen = torch.distributions.Categorical(logits=actor(body(states)))
            actions = chosen.sample()  # type: ignore[no-untyped-call]
            before = chosen.log_prob(actions)  # type: ignore[no-untyped-call]
        for _ in range(length(4)):
            for some in torch.randperm(len(states)).split(32):
                hidden = body(states[some])
                now = torch.distributions.Categorical(logits=actor(hidden))
                ratio = (now.log_prob(actions[some]) - before[some]).exp()  # type: ignore[no-untyped-call]
                value = critic(hidden).squeeze(1)
                gain = rewards[some] - value.detach()
                clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
                loss = F.mse_loss(value, rewards[some]) - clipped.mean()
                optimizer.zero_grad()
                (loss - 0.01 * now.entropy().mean()).backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()

    return iteration


def checkpointed() -> Iteration:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6))

    def loss(size: Draw, _: Draw) -> Tensor:
        x = torch.randn(size(64), 64, requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    return trained(list(layers.parameters()), loss)


def packed_sequences() -> Iteration:
    encoder, head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 1)

    def loss(size: Draw, length: Draw) -> Tensor:
        lengths = sorted((length(12) for _ in range(size(8))), reverse=True)
        x = torch.randn(len(lengths), lengths[0], 8)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
        _, last = encoder(packed)
        out: Tensor = head(last).square().mean()
        return out

    return trained([*encoder.parameters(), *head.parameters()], loss)


def with_evaluation() -> Iteration:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    train = trained(
        list(model.parameters()), lambda size, _: model(torch.randn(size(16), 8)).square().mean()
    )
    done = 0

    def iteration(size: Draw, length: Draw) -> None:
        nonlocal done
        train(size, length)
        done += 1
        if done % 7 == 0:
            with torch.no_grad():
                model(torch.randn(64, 8))

    return iteration


SAME, SIZES, SHAPE = "same", "sizes", "shape"
LOOPS: dict[str, tuple[Callable[[], Iteration], tuple[str, ...]]] = {
    "Transformer, 6 layers d=256": (lambda: transformer(256, 8, 64), (SAME, SIZES)),
    "convolutional network": (convolutions, (SAME, SIZES)),
    "Transformer d=32, launch-bound": (lambda: transformer(32, 2, 8), (SAME, SIZES)),
    "LSTMCell, 50 steps": (lstm_cell, (SAME, SIZES, SHAPE)),
    "1,000 scalar operations": (scalar_operations, (SAME, SHAPE)),
    "adaptive solver, 20 steps": (solver, (SAME, SHAPE)),
    "packed sequences": (packed_sequences, (SAME, SIZES, SHAPE)),
    "GAN, two backward calls": (lambda: gan(1024, 64, 64), (SAME, SIZES)),
    "tiny GAN": (lambda: gan(64, 16, 32), (SAME, SIZES)),
    "tiny MLP": (tiny_mlp, (SAME, SIZES)),
    "tiny MLP, evaluated every 7 steps": (with_evaluation, (SAME, SIZES)),
    "two losses, retain_graph": (two_losses, (SAME, SIZES)),
    "gradient penalty": (gradient_penalty, (SAME, SIZES)),
    "MAML, 4 inner steps": (inner_loop, (SAME, SIZES, SHAPE)),
    "PPO, 4 epochs of 4 batches": (policy_epoch, (SAME, SIZES, SHAPE)),
    "checkpointed network": (checkpointed, (SAME, SIZES)),
}


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
    watched: list[float] = []
    first: list[float] = []
    lifted = True
    before = seconds(iteration, way, WARM_UP, 99)
    for _ in range(BLOCKS):
        plain += [seconds(iteration, way, count, seed) for seed in range(rounds)]
        with gradscope.watch() as scope:
            first.append(seconds(iteration, way, WARM_UP, 99))
            watched += [seconds(iteration, way, count, seed) for seed in range(rounds)]
            assert scope._session is not None
            lifted = lifted and scope._session.state.lifting.on
    middle = statistics.median(plain)
    with torch.autograd.set_detect_anomaly(True):
        anomaly = statistics.median(seconds(iteration, way, count, s) for s in range(3))
    ratio, best = statistics.median(watched) / middle, min(watched) / min(plain)
    each, more = 1000 * middle / count, min(first) - before
    return Row(name, way, each, ratio, best, anomaly / middle, more, lifted)


def table(rows: list[Row]) -> str:
    lines = [
        f"| loop | plain | same | sizes | shape | anomaly mode | first {WARM_UP} iterations |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(row.name for row in rows):
        of_loop = {row.way: row for row in rows if row.name == name}
        cells = [
            f"{row.ratio:.2f} ({row.best:.2f}){'' if row.lifted else ' *'}"
            if (row := of_loop.get(way))
            else "-"
            for way in (SAME, SIZES, SHAPE)
        ]
        cells.append(f"{next(iter(of_loop.values())).anomaly:.1f}")
        most = max(row.first for row in of_loop.values())
        plain = next(iter(of_loop.values())).plain
        lines.append(f"| {name} | {plain:.2f} ms | {' | '.join(cells)} | +{max(most, 0):.2f} s |")
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
    """Return what check and snapshot cost on new graphs, over a bare walk in Python."""
    lines = ["| graph | nodes | bare walk | `check` | `snapshot` |", "|---|---:|---:|---:|---:|"]
    for name, build in (("Transformer, 24 layers", graph_of_a_transformer), ("chain", chain)):
        best = []
        for look in (walk, gradscope.check, gradscope.snapshot):
            times = []
            for _ in range(5):
                loss = build()
                start = time.process_time()
                look(loss)
                times.append(time.process_time() - start)
            best.append(min(times))
        nodes = walk(build())
        bare = f"{1e6 * best[0] / nodes:.2f} µs a node"
        ratios = " | ".join(f"{each / best[0]:.0f}x" for each in best[1:])
        lines.append(f"| {name} | {nodes:,} | {bare} | {ratios} |")
    return "\n".join(lines)


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
docs/performance.md` writes this page; run it on a machine of your own for figures of your own.

Measured with {machine},
one thread, while the machine was busy with other things: a figure varies by a tenth or two from run
to run, more in loops below two milliseconds.

{table}

*same*: every iteration is like the one before. *sizes*: batches or sequences of another size each
time, with the same operations. *shape*: another number of operations each time. *anomaly mode* is
torch's `detect_anomaly`. The last column is what the first {warm_up} iterations cost more in all,
in the worst of the ways: there the watch looks at everything in full. `*` marks loops in which the
saved-tensor hooks stay in force ([why](how-it-works.md#while-nothing-new-comes)): here, those that
use hooks of their own.

## What is left

A ratio has two parts. A backward call costs a fixed time whatever its graph: {fixed:.0f} µs an
iteration of the tiny MLP here, with the step of its optimizer. About a quarter of that reads its
eleven nodes, a fifth finds the place of the call and what is known of calls like it, a quarter
counts and books it, and the rest asks whether something grows and notes what the optimizer's step
changed. In a quiet moment it was 70 µs. That shows in loops of less than a millisecond. And each
node costs about a microsecond: the graph is walked from Python, every saved tensor is read, and
torch makes a Python object for each. That shows where operations are so small that their forward
and backward take a few microseconds, as with 1,000 scalar operations. Both are time in Python.

The first iterations cost most where graphs of hundreds of nodes are never alike: hooks on every
saved tensor, a full look at every node, and a picture of the first graphs for the recording.

## Memory

Over 240,000 iterations that are alike, the memory of the process grew by 21 MB in the first 110,000
and then no more; over 100,000 that are never alike it grew by 18 MB, over 60,000 whose graphs
grow by 14 MB. A watch remembers a few numbers of the last 100,000 calls. The recordings had 0.2 to
0.3 MB.

## Looks on demand

`check` reads what each node saved, and looks in full only where that finds something. `snapshot`
makes plain data of every node, saved tensor and edge. Both are compared with a walk in Python that
visits every node and does nothing else.

{looks}

Torch shows a saved tensor only through a Python object, made for the purpose, that says whether
hooks of the program's are on it; this object alone costs about as much as the walk to its node.

## Commands

These import no torch.

{starts}
"""


def page(rows: list[Row]) -> str:
    fixed = [1000 * row.plain * (row.best - 1) for row in rows if row.name == "tiny MLP"]
    python, cores = platform.python_version(), os.cpu_count()
    machine = (
        f"torch {torch.__version__}, Python {python}, {platform.machine()}, {cores} cores, CPU"
    )
    return PAGE.format(
        machine=machine,
        table=table(rows),
        fixed=min(fixed, default=0.0),
        warm_up=WARM_UP,
        looks=looks(),
        starts=starts(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what watching costs in loops.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each of two blocks")
    parser.add_argument("--only", default="", help="only loops whose name contains this")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the page to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (_, ways) in LOOPS.items():
        if options.only.lower() in name.lower():
            for way in ways:
                row = measure(name, way, options.rounds)
                rows.append(row)
                line = f"{name:36} {way:6} {row.plain:8.2f} ms {row.ratio:6.2f}"
                print(f"{line} ({row.best:.2f}), first +{row.first:.2f} s", flush=True)
    print(table(rows))
    if options.write:
        options.write.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
