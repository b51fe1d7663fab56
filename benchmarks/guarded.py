"""What a guarded backward call costs apart from the engine, which does nothing here, and what the
optimizer's step after it costs more, beside the least that a guard in Python costs.

    python benchmarks/guarded.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import torch
from least import counting, reading
from torch import nn
from torch.autograd import Variable

import gradscope

LAYERS = 2, 40
ROUNDS, CALLS = 60, 25
WARM = 300  # steps, by which the hooks are lifted


class IdleEngine:
    """Runs nothing."""

    def run_backward(self, *_: Any, **__: Any) -> tuple[()]:
        """Return at once."""
        return ()


WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "calls counted": counting,
    "graphs read": reading,
    "watched": gradscope.watch,
}


def measure(layers: int, way: Callable[[], AbstractContextManager[Any]]) -> tuple[float, float]:
    """Return the fewest microseconds of a round for a backward call and for a step."""
    net = nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(8, 8), nn.Tanh())))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    best = [float("inf")] * 2

    def steps(count: int) -> tuple[float, float]:
        calls = after = 0.0
        for _ in map(int, range(count)):  # whose end cannot be foreseen
            loss = net(torch.randn(4, 8)).pow(2).mean()
            begin = time.perf_counter()
            loss.backward()
            between = time.perf_counter()
            optimizer.step()
            after += time.perf_counter() - between
            calls += between - begin
        return calls / count * 1e6, after / count * 1e6

    with way():
        steps(WARM)
        with mock.patch.object(Variable, "_execution_engine", IdleEngine()):
            for _ in range(ROUNDS):
                best = [*map(min, best, steps(CALLS))]
    return best[0], best[1]


def main() -> None:
    """Print one line for each size of graph and way."""
    torch.set_num_threads(1)
    for layers in LAYERS:
        plain = measure(layers, nullcontext)
        for name, way in WAYS.items():
            call, step = measure(layers, way)
            more = f"{call - plain[0]:7.1f} µs a call, {step - plain[1]:6.1f} µs a step"
            print(f"{layers:3} layers  {name:14} {more} more than plain")


if __name__ == "__main__":
    main()
