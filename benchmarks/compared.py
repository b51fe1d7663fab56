"""Compares the cost of gradscope with that of other tools, for the page ``docs/compared.md``.

All ways take turns in one process; the figures are medians of ratios to the plain training step, in
CPU time of this process and those it starts. torchviz and torchlens are left out where they are not
installed.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name

import gradscope

ROUNDS, STEPS, SETTLED = 9, 10, 12

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


class Training:
    """One example: its model, its optimizer, and what computes a loss."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.module: Any = import_module(name)
        self.model = self.module.Sorter() if name == "transformer" else self.module.MultiTask()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def batch(self) -> tuple[torch.Tensor, ...]:
        is_sorter = hasattr(self.module, "Sorter")
        return tuple(self.module.make_batch() if is_sorter else self.module.make_batch(64))

    def loss(self) -> torch.Tensor:
        inputs, target, *others = self.batch()
        if not others:
            return F.cross_entropy(self.model(inputs).flatten(0, 1), target.flatten())
        kind, frequency = self.model(inputs)
        return F.cross_entropy(kind, target) + F.mse_loss(frequency, others[0])

    def step(self) -> None:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that some work takes, here and in processes that it starts."""
    usages = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    begun = [resource.getrusage(usage) for usage in usages]
    work()
    ended = [resource.getrusage(usage) for usage in usages]
    return sum(
        b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(begun, ended, strict=True)
    )


def steps(training: Training, context: contextlib.AbstractContextManager[object]) -> float:
    """Return the seconds of one training step inside of a context, once it has settled."""
    with context:
        for _ in range(SETTLED):
            training.step()
        return statistics.median(seconds(training.step) for _ in range(STEPS))


def ways(training: Training, folder: str) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield each way by its name; the plain step comes first."""
    anomaly = torch.autograd.set_detect_anomaly
    yield "plain step", lambda: steps(training, contextlib.nullcontext())
    yield "step, gradscope", lambda: steps(training, gradscope.watch())
    yield "step, detect_anomaly", lambda: steps(training, anomaly(True))
    loss, file = training.loss(), f"{folder}/picture.svg"
    gradscope.draw(loss, file=file)  # the layout engine is compiled once on a machine
    yield "snapshot, gradscope", lambda: seconds(lambda: gradscope.snapshot(loss))
    yield "picture, gradscope", lambda: seconds(lambda: gradscope.draw(loss, file=file))
    with contextlib.suppress(ImportError):
        import torchviz

        def picture() -> None:
            torchviz.make_dot(loss).render(f"{folder}/torchviz", format="svg")

        yield "picture, torchviz", lambda: seconds(picture)
    with contextlib.suppress(ImportError):
        import torchlens

        inputs = training.batch()[0]
        torchlens.trace(training.model, inputs)  # its imports
        forward = lambda: torchlens.trace(training.model, inputs)  # noqa: E731
        yield "one forward pass, torchlens", lambda: seconds(forward)


def main() -> None:
    for name in ("transformer", "multi_task"):
        training = Training(name)
        ratios: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            chosen = list(ways(training, folder))
            for _ in range(ROUNDS):
                times = {way: measure() for way, measure in chosen}
                for way, time in times.items():
                    ratios.setdefault(way, []).append(time / times["plain step"])
        print(f"{name}: {len(gradscope.snapshot(training.loss()).nodes)} nodes")
        for way, found in ratios.items():
            print(f"  {way:28} {statistics.median(found):6.2f}x")


if __name__ == "__main__":
    main()
