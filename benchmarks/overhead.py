"""What watching costs: time per iteration, plain and watched, measured side by side in one process.

The ways of running an iteration take turns, round by round and in changing order, so that a machine
that is busy with other things slows all of them alike. A ratio is the median of those of many short
rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # quiets torch's profiler; must be set this early

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name
from torch.profiler import ProfilerActivity, profile

import gradscope

WARM_UP = 10
Iteration = Callable[[], Tensor]
"""One forward pass, backward pass and optimizer step; it returns the loss."""


@dataclass(frozen=True)
class Workload:
    """What to time.

    ``allowed`` is the ratio that watching with hooks may reach; a round times ``iterations`` of
    them together.
    """

    name: str
    build: Callable[[torch.device], Iteration]
    allowed: float
    iterations: int


@dataclass(frozen=True)
class Row:
    """Seconds per iteration of the plain way, the ratios of the others, and peaks in bytes."""

    name: str
    plain_seconds: float
    ratios: dict[str, float]
    allowed: float
    peak_bytes: dict[str, int]
    same_losses: bool


def trainer(model: nn.Module, loss: Callable[[], Tensor]) -> Iteration:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def iteration() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return value.detach()

    return iteration


def transformer(device: torch.device, width: int, batch: int, length: int) -> Iteration:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(device)
    x = torch.randn(batch, length, width, device=device)
    return trainer(model, lambda: model(x).square().mean())


def convolutions(device: torch.device) -> Iteration:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10)).to(device)
    x, labels = torch.randn(16, 3, 32, 32, device=device), torch.randint(10, (16,), device=device)
    return trainer(model, lambda: F.cross_entropy(model(x), labels))


def lstm_cell(device: torch.device) -> Iteration:
    cell = nn.LSTMCell(32, 64).to(device)
    x = torch.randn(50, 8, 32, device=device)

    def loss() -> Tensor:
        hidden = state = torch.zeros(8, 64, device=device)
        for step in x:
            hidden, state = cell(step, (hidden, state))
        return hidden.square().mean()

    return trainer(cell, loss)


def chain(device: torch.device, operation: Callable[[Tensor, int], Tensor]) -> Iteration:
    leaf = nn.Parameter(torch.ones(1, device=device))
    holder = nn.ParameterList([leaf])

    def loss() -> Tensor:
        x: Tensor = leaf
        for number in range(1000):
            x = operation(x, number)
        return x.sum()

    return trainer(holder, loss)


def mixed(x: Tensor, number: int) -> Tensor:
    kinds = (torch.sin, torch.tanh, lambda t: t * 0.99, lambda t: t + 1, torch.sigmoid)
    return kinds[number % len(kinds)](x)


WORKLOADS = (
    Workload(
        "Transformer, 6 layers d=256, batch 8x64", lambda d: transformer(d, 256, 8, 64), 1.05, 1
    ),
    Workload("small conv net, batch 16x3x32x32", convolutions, 1.05, 4),
    Workload(
        "launch-bound Transformer d=32, batch 2x8", lambda d: transformer(d, 32, 2, 8), 1.3, 8
    ),
    Workload("LSTMCell over 50 steps", lstm_cell, 1.3, 8),
    Workload("1,000 x sin", lambda d: chain(d, lambda x, _: x.sin()), 1.8, 4),
    Workload("1,000 x multiply by a scalar", lambda d: chain(d, lambda x, _: x * 0.99), 1.8, 4),
    Workload("1,000 x add", lambda d: chain(d, lambda x, _: x + 1), 1.8, 4),
    Workload("1,000 x tanh", lambda d: chain(d, lambda x, _: x.tanh()), 1.8, 4),
    Workload("1,000 mixed", lambda d: chain(d, mixed), 1.8, 4),
)

WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "plain": contextlib.nullcontext,
    "watched": gradscope.watch,
    "no hooks": lambda: gradscope.watch(hooks=False),
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_iteration(iteration: Iteration, count: int, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        iteration()
    synchronize(device)
    return (time.perf_counter() - start) / count


def measure_times(
    workload: Workload, ways: list[str], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Return seconds per iteration of each way, round by round.

    Opening a watch and its first iterations are not timed.
    """
    torch.manual_seed(0)
    iteration = workload.build(device)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            gc.collect()
            with WAYS[way]():
                for _ in range(WARM_UP):
                    iteration()
                spent = seconds_per_iteration(iteration, workload.iterations, device)
            if number > 0:
                seconds[way].append(spent)
    return seconds


def ratio(these: list[float], plain: list[float]) -> float:
    """Return the median of the rounds' own ratios: what slows a whole round down cancels out."""
    return statistics.median(one / other for one, other in zip(these, plain, strict=True))


def losses_of(workload: Workload, way: str, device: torch.device) -> list[str]:
    """Return the exact losses of three iterations from the same start."""
    torch.manual_seed(0)
    iteration = workload.build(device)
    with WAYS[way]():
        return [float(iteration()).hex() for _ in range(3)]


def highest(profiler: profile) -> int:
    """Return the peak of the bytes that torch's allocator gave out in a profile."""
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    return max(itertools.accumulate(size for _, size in changes))


def peak_bytes(workload: Workload, way: str, device: torch.device) -> tuple[int, list[str]]:
    """Return the peak of allocated bytes over three iterations, and their losses."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        losses = losses_of(workload, way, device)
        return torch.cuda.max_memory_allocated(device), losses
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        losses = losses_of(workload, way, device)
    return highest(profiler), losses


def measure(workload: Workload, ways: list[str], rounds: int, device: torch.device) -> Row:
    seconds = measure_times(workload, ways, rounds, device)
    peaks = {way: peak_bytes(workload, way, device) for way in ways if way != "anomaly"}
    return Row(
        name=workload.name,
        plain_seconds=statistics.median(seconds["plain"]),
        ratios={way: ratio(seconds[way], seconds["plain"]) for way in ways if way != "plain"},
        allowed=workload.allowed,
        peak_bytes={way: peak for way, (peak, _) in peaks.items()},
        same_losses=len({tuple(losses) for _, losses in peaks.values()}) == 1,
    )


def heading(ways: list[str]) -> str:
    ratios = "".join(f"{way:>10}" for way in ways if way != "plain")
    return f"{'':42}{'plain':>10}{ratios}{'allowed':>10}   peak bytes, losses"


def line(row: Row) -> str:
    ratios = "".join(f"{ratio:>9.2f}x" for ratio in row.ratios.values())
    plain = row.peak_bytes["plain"]
    changes = [f"{way} {peak - plain:+,}" for way, peak in row.peak_bytes.items() if peak != plain]
    same = f"{plain:,} in all" if not changes else f"{plain:,} plain, {', '.join(changes)}"
    losses = "same" if row.same_losses else "DIFFERENT"
    figures = f"{row.name:42}{1000 * row.plain_seconds:>8.2f}ms{ratios}{row.allowed:>9.2f}x"
    return f"{figures}   {same}, {losses}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what watching costs.")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument(
        "--rounds", type=int, default=15, help="timed rounds of each way (default: 15)"
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what to measure besides plain"
    )
    parser.add_argument(
        "--only", default="", help="measure only workloads whose name contains this"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch's own threads (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file too")
    options = parser.parse_args()

    warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    ways = ["plain", *(way for way in options.ways if way != "plain")]
    print(
        f"torch {torch.__version__}, {device}, {options.threads} threads, {options.rounds} rounds"
    )
    print(heading(ways))
    rows = []
    for workload in WORKLOADS:
        if options.only in workload.name:
            rows.append(measure(workload, ways, options.rounds, device))
            print(line(rows[-1]), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=2)


if __name__ == "__main__":
    main()
