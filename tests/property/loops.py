"""Random training loops: how the totals of a watch that guards compare with those of one that never does.

``python -m tests.property.loops FIRST --count N`` runs loops from a seed on, and tells by how much numbers differ.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import gradscope
from gradscope.collect import hook_suspension
from gradscope.collect.calls import COUNTS
from gradscope.model import Summary

ITERATIONS = 220
LIFTED_AFTER = ("_ALIKE", "_ALIKE_WITHOUT_STEPS", "_FEWER", "_FEWER_WITHOUT_STEPS")


@dataclass(frozen=True)
class Loop:
    """What a loop does in each iteration, or in some."""

    layers: int
    width: int
    sizes: tuple[int, ...]
    steps: int
    losses: int
    accumulates: int
    evaluates: int
    skips: int
    retains: bool
    optimizes: bool
    keeps: str

    @classmethod
    def of(cls, seed: int) -> Loop:
        draw = random.Random(seed)
        sizes = draw.sample(range(2, 40), draw.choice((1, 1, 2, 3, 20)))
        return cls(
            layers=draw.randint(1, 4),
            width=draw.choice((4, 16, 33)),
            sizes=tuple(sizes),
            steps=draw.choice((1, 1, 1, 3, 6)),
            losses=draw.choice((1, 1, 2, 3)),
            accumulates=draw.choice((1, 1, 1, 4)),
            evaluates=draw.choice((0, 0, 5, 10)),
            skips=draw.choice((0, 0, 0, 3, 7)),
            retains=draw.random() < 0.2,
            optimizes=draw.random() < 0.8,
            keeps=draw.choice(("", "", "losses", "h", "losses", "a few")),
        )

    def run(self, seed: int) -> Iterator[None]:
        """Run it, with a stop after each iteration."""
        draw = random.Random(seed)
        torch.manual_seed(seed)
        trunk = nn.Sequential(
            *(
                each
                for _ in range(self.layers)
                for each in (nn.Linear(self.width, self.width), nn.Tanh())
            )
        )
        heads = nn.ModuleList(nn.Linear(self.width, 1) for _ in range(self.losses))
        optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=1e-3)
        kept: list[torch.Tensor] = []
        for i in range(ITERATIONS):
            h = torch.randn(draw.choice(self.sizes), self.width)
            for _ in range(self.steps):
                h = trunk(h)
            losses = [head(h).pow(2).mean() for head in heads]
            if not (self.skips and i % self.skips == 0):
                for loss in losses:
                    loss.backward(retain_graph=self.retains or loss is not losses[-1])
            if self.optimizes and i % self.accumulates == 0:
                optimizer.step()
                optimizer.zero_grad()
            kept += {"losses": losses, "h": [h], "a few": losses}.get(self.keeps, [])
            if self.keeps == "a few" and i % 50 == 49:
                kept.clear()
            del h, losses
            if self.evaluates and i % self.evaluates == 0:
                trunk(torch.randn(7, self.width)).sum().item()
            yield


def totals(seed: int, *, guards: bool) -> Summary:
    """Return what a watch counts of a loop, and reckons of it where it ``guards``."""
    with pytest.MonkeyPatch.context() as patch, gradscope.watch() as scope:
        for name in () if guards else LIFTED_AFTER:
            patch.setattr(hook_suspension, name, sys.maxsize)
        for _ in Loop.of(seed).run(seed):
            pass
    return scope.recording().summary


def differences(seed: int) -> tuple[bool, dict[str, float]]:
    """Return whether numbers are said to be exact, and how far each is from what was counted, as a share of it."""
    reckoned, counted = (totals(seed, guards=guards) for guards in (True, False))
    pairs = {
        name: (getattr(reckoned, name), getattr(counted, name))
        for name in (*COUNTS, "peak_saved_bytes")
    }
    return reckoned.exact, {
        name: abs(one - other) / max(other, 1) for name, (one, other) in pairs.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args(arguments)
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    exact = 0
    for seed in range(options.first, options.first + options.count):
        is_exact, shares = differences(seed)
        exact += is_exact
        for name, share in shares.items():
            found[name].append((share, seed))
            if is_exact and share:
                print(f"{seed}: {name} is called exact and differs by {share:.1%}")
    print(f"{options.count} loops, {exact} of them exact")
    for name, shares_of in found.items():
        far = sorted(((s, seed) for s, seed in shares_of if s > 0.05), reverse=True)
        print(
            f"{name}: {len(far)} differ by more than 5 %, at the most {max(shares_of)[0]:.1%}: {[seed for _, seed in far[:5]]}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
