"""What a watch costs on the simulated device and on the CPU.

    python -m benchmarks.on_device

The loops are those in which the engine's own threads build nodes or run hooks. Each runs in
processes of its own, by turns on both; of a figure, four in five steps took longer.
"""

from __future__ import annotations

import os
import time

import torch

import gradscope
from tests import device
from tests.device.test_watched import (
    Step,
    gradient_penalty,
    reentrant_checkpoints,
    tensor_hooks,
)

LOOPS = {
    "gradient penalty": gradient_penalty,
    "reentrant checkpoints": reentrant_checkpoints,
    "hooks that compute": tensor_hooks,
}
STEPS, ROUNDS, TURNS = 300, 4, 2


def typical(step: Step, count: int = STEPS) -> float:
    """Return the microseconds of a step, of which four in five took longer."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return sorted(times)[count // 5] * 1e6


def measure(name: str, where: str) -> tuple[float, float]:
    """Return the time of a step, plain and watched, in a process that is this loop's own."""
    if where == "sim":
        device.load()
    device.make_on(where)
    torch.set_num_threads(1)
    step = LOOPS[name]()
    typical(step, 100)
    plain = [typical(step) for _ in range(ROUNDS)]
    with gradscope.watch():
        typical(step, 100)
        watched = [typical(step) for _ in range(ROUNDS)]
    plain += [typical(step) for _ in range(ROUNDS)]
    return min(plain), min(watched)


def in_fork(name: str, where: str) -> tuple[float, float]:
    """Measure in a fork: the engine of this process must not have begun."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, "{} {}".format(*measure(name, where)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        plain, watched = map(float, answer.read().split())
    os.waitpid(child, 0)
    return plain, watched


def main() -> None:
    device.library()
    print("| loop | CPU, µs | watched | device, µs | watched |\n|---|---:|---:|---:|---:|")
    for name in LOOPS:
        row = [name]
        turns = [[in_fork(name, where) for where in ("cpu", "sim")] for _ in range(TURNS)]
        for measured in zip(*turns, strict=True):
            plain, watched = map(min, zip(*measured, strict=True))
            row += [f"{plain:.0f}", f"{watched:.0f} ({watched / plain:.2f}x)"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
