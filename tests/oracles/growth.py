"""Counts, at each optimizer step, the nodes that a program's tensors lead to, without gradscope."""

from __future__ import annotations

import gc
from pathlib import Path

MOST_NODES = 50_000
STEPS = 60


def start(path: Path) -> None:
    """From here on, write a line with the number of nodes to ``path`` at each optimizer step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = 0

    def step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps <= STEPS:
            with open(path, "a", encoding="ascii") as file:
                file.write(f"{nodes()}\n")

    register_optimizer_step_post_hook(step)


def nodes() -> int:
    """Return how many nodes the tensors that Python knows of lead to, but those of leaves."""
    import torch

    waiting = [
        one.grad_fn
        for one in gc.get_objects()
        if issubclass(type(one), torch.Tensor) and one.grad_fn is not None
    ]
    seen = set(waiting)
    while waiting and len(seen) < MOST_NODES:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen and "AccumulateGrad" not in node.name():
                seen.add(node)
                waiting.append(node)
    return len(seen)


def read(path: Path) -> tuple[int, ...]:
    """Return the numbers that a run has written."""
    try:
        return tuple(map(int, path.read_text("ascii").split()))
    except (OSError, ValueError):
        return ()


def grows(sizes: tuple[int, ...]) -> bool:
    """Whether the last third of a run always holds more than the first third ever did, and ever more."""
    third = len(sizes) // 3
    if third < 3:
        return False
    first, second, last = sizes[:third], sizes[third : 2 * third], sizes[2 * third :]
    return max(first) < min(last) and max(second) < max(last) and min(last) >= min(first) + third
