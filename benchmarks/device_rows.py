"""What is measured and compared on a device, a row of the page at a time."""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel

import gradscope
from benchmarks import loop_programs
from tests import device
from tests.device import side_by_side
from tests.device.test_watched import (
    Step,
    gradient_penalty,
    reentrant_checkpoints,
    tensor_hooks,
)
from tests.forked import returned_by_fork

ROUNDS, WARM_UP = 3, 30
ENOUGH, SLOW = 0.2, 0.03  # seconds of a round, and of a step that is too long for one
FEW = 10  # steps of a check

BY_ENGINE = {
    "gradient penalty": gradient_penalty,
    "reentrant checkpoints": reentrant_checkpoints,
    "hooks that compute": tensor_hooks,
}
"""Loops in which the engine's own threads build nodes or run hooks."""
LOOPS = (
    *(*BY_ENGINE, "tiny MLP", "two losses, retain_graph", "MAML, 4 inner steps"),
    *("checkpointed network", "Transformer d=32, launch-bound", "convolutional network"),
    *("LSTMCell, 50 steps", "Transformer, 6 layers d=256"),
)
WAITING = (*BY_ENGINE, "tiny MLP", "convolutional network")
WAYS: dict[str, Callable[[], Any]] = {
    "plain": nullcontext,
    "watched": gradscope.watch,
    "idle hooks": partial(saved_tensors_hooks, lambda saved: saved, lambda packed: packed),
}
EAGER, AMP, STREAMS = "eager", "autocast, GradScaler", "forward on another stream"
GRAPHS, COMPILED, ONE_RANK = "CUDA graph of a step", "torch.compile, inductor", "DDP, one rank"
CHECKS = (EAGER, AMP, STREAMS, GRAPHS, ONE_RANK, COMPILED)

Row = tuple[list[str], str]
"""The cells of a row, and its verdict: what differs, failed or was skipped says why."""


def begin(where: str) -> None:
    """Have the program of this process run on a device."""
    if where == "sim":
        device.load()
    device.make_on(where)
    torch.manual_seed(0)


def programs(name: str, where: str, _: int) -> Row:
    """Compare random programs on the device with the CPU."""
    first, last = map(int, name.split(" to "))
    counted, wrong, notes = Counter[str](), [], []
    for seed, comparison in side_by_side.differing(range(first, last + 1), where):
        if isinstance(comparison, str):
            counted["not compared"] += 1
            notes.append(comparison)
            continue
        counted[verdict := comparison.verdict] += 1
        # On CUDA torch chooses other operators, so the tables of them are others.
        if where == "sim" or verdict in ("changed", "findings"):
            wrong.append(f"{verdict} of {seed}")
    equal = last + 1 - first - counted.total()
    told = counted["details"] + counted["tables"]
    cells = [equal, told, counted["changed"] + counted["findings"], counted["not compared"]]
    verdict = "differs: " + ", ".join(wrong) if wrong else "; ".join(["same", *sorted({*notes})])
    return [*map(str, cells)], verdict


def loop(name: str) -> Step:
    if name in BY_ENGINE:
        return BY_ENGINE[name]()
    return partial(loop_programs.LOOPS[name][0](), int, int)


def overhead(name: str, where: str, steps: int) -> Row:
    """Measure a loop on the CPU and on the device."""
    sides = [returned_by_fork(partial(timed, name, each, steps)) for each in ("cpu", where)]
    plain = [side.pop("plain") for side in sides]
    ratios = [[f"{ratio:.2f}" for ratio in side.values()] or ["-", "-"] for side in sides]
    cells = [c for own, others in zip(plain, ratios, strict=True) for c in (f"{own:.0f}", *others)]
    return cells, "measured" if sides[1] else f"skipped: a step takes over {SLOW:g} s"


def timed(name: str, where: str, steps: int) -> dict[str, float]:
    """Return the microseconds of a plain step, and the ratio of each other way to it."""
    begin(where)
    step, wait = loop(name), torch.get_device_module(where).synchronize

    def seconds(count: int) -> float:
        wait()
        begun = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - begun) / count

    seconds(3)
    each = seconds(3)
    if each > SLOW:
        return {"plain": each * 1e6}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    ways = list(WAYS)
    for _ in range(ROUNDS if steps > WARM_UP else 1):  # few steps only try this page out
        gc.collect()
        for way in ways:
            with WAYS[way]():
                seconds(min(WARM_UP if way == "watched" else 3, steps))
                times[way].append(seconds(min(steps, max(5, int(ENOUGH / each)))))
        ways = ways[1:] + ways[:1]
    plain = times.pop("plain")
    ratios = {
        way: statistics.median(map(float.__truediv__, own, plain)) for way, own in times.items()
    }
    return {"plain": statistics.median(plain) * 1e6, **ratios}


@contextmanager
def waits(where: str) -> Iterator[list[int]]:
    """Count how often the host waits for the device; the list has the number afterwards."""
    counted: list[int] = []
    if where == "sim":
        sim = device.load()
        before = sim.waits() + sim.downloads()
        yield counted
        counted.append(sim.waits() + sim.downloads() - before)
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield counted
        torch.cuda.set_sync_debug_mode("default")
    counted.append(sum("synchronizing" in str(each.message) for each in said))


def syncs(name: str, where: str, steps: int) -> Row:
    """Count the waits of a loop, plain and watched, and one that is planted."""
    begin(where)
    step, counts = loop(name), []
    for watching in (nullcontext, nullcontext, gradscope.watch):  # the first sets up libraries
        with waits(where) as count, watching():
            for _ in range(min(steps, WARM_UP)):
                step()
        counts += count
    with waits(where) as planted:
        torch.ones(1).item()
    cells = [*map(str, counts[1:] + planted)]
    if not planted[0]:
        return cells, "failed: the planted wait is not counted"
    return cells, "same" if counts[1] == counts[2] else "differs"


def check(name: str, where: str, _: int) -> Row:
    """Train plainly and watched, and plant an error."""
    if where == "sim":
        device.load()
    home = "cpu" if where == "sim" and name in (ONE_RANK, COMPILED) else where
    if name == COMPILED and not any(map(shutil.which, ("cc", "gcc", "g++"))):
        return [], "skipped: no compiler"
    if name == STREAMS and not hasattr(torch.Stream, "__enter__"):
        return [], "skipped: this torch enters no stream of any device"
    with one_rank(home) if name == ONE_RANK else nullcontext():
        # The first sets up libraries, which keep memory.
        _first, (once, held), (again, as_much) = (train(name, home)[:2] for _ in range(3))
        with gradscope.watch() as scope:
            values, watched, loss = train(name, home)
            healthy = [finding.code for finding in scope.findings]
            failing = loss()
            failing.backward()
            with suppress(RuntimeError):  # a second time
                failing.backward()
                raise AssertionError("the planted error is none")
    wrong = [f"{code} in a healthy loop" for code in healthy]
    wrong += [note for note in scope.summary.notes if "failed" in note]
    found = sorted({finding.code for finding in scope.findings})
    wrong += [] if "GS101" in found else ["the planted error is not found"]
    steady = torch.equal(once, again)
    if not (torch.equal if steady else torch.allclose)(again, values):
        wrong.append("the parameters")
    if held == as_much < watched:
        wrong.append(f"{held} and {watched} bytes are held")
    alike = "bit for bit" if steady else "nearly"
    cells = [home, alike, f"{watched:,}" if watched else "-", ", ".join(found)]
    if wrong:
        return cells, "differs: " + "; ".join(wrong)
    if name == GRAPHS and where != "cuda":
        return [], "skipped: only CUDA captures; the steps ran, uncaptured"
    return cells, "same"


def train(name: str, where: str) -> tuple[Tensor, int, Callable[[], Tensor]]:
    """Train a small network; return its parameters, the bytes that are held, and its loss."""
    allocated = getattr(torch.get_device_module(where), "memory_allocated", lambda: 0)
    gc.collect()
    before = allocated()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(where)
    x = torch.randn(64, 16).to(where)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wraps: dict[str, Any] = {COMPILED: torch.compile, ONE_RANK: DistributedDataParallel}
    forward = wraps[name](model) if name in wraps else model
    scaler = torch.amp.GradScaler(where, enabled=name == AMP)
    side = torch.Stream(device=where) if name == STREAMS else None

    def loss() -> Tensor:
        if side is not None:
            side.wait_stream(torch.accelerator.current_stream())
        with side or nullcontext(), torch.autocast(where, enabled=name == AMP):
            value: Tensor = forward(x).float().square().mean()
        if side is not None:
            torch.accelerator.current_stream().wait_stream(side)
        return value

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()

    run = captured(step) if name == GRAPHS and where == "cuda" else step
    for _ in range(FEW):
        run()
    values = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
    gc.collect()
    return values, allocated() - before, loss


def captured(step: Step) -> Step:
    """Return the replay of a step that a CUDA graph has captured as torch's notes advise."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@contextmanager
def one_rank(where: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if where == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{folder}/store", rank=0, world_size=1)
        yield
        dist.destroy_process_group()
