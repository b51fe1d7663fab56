"""Random steps on a DistributedDataParallel: what its reducer raises was said, and no second mark that it allows."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradscope
from gradscope.rules import gs602, gs603

pytestmark = [
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here"
    ),
    pytest.mark.filterwarnings("ignore"),
]
Way = Sequence[tuple[int, str]]
OPTIONS: list[dict[str, Any]] = [
    *([{}] * 3),
    *([{"find_unused_parameters": True}] * 2),
    {"static_graph": True},
]


class Net(nn.Module):
    """Goes ways through its parts: plain, in a reentrant checkpoint, or times a parameter beside them."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(parts))
        self.aside = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, ways: Sequence[Way]) -> tuple[Tensor, ...]:
        return tuple(self.along(x, way) for way in ways)

    def along(self, x: Tensor, way: Way) -> Tensor:
        for i, how in way:
            if how == "checkpoint":
                x = checkpoint(self.parts[i], x, use_reentrant=True)
            else:
                x = self.parts[i](x) if how == "plain" else x * self.aside
            x = x.tanh()
        return x


class Program:
    """Iterations, most of them alike, of forwards and backward calls in some order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.parts, self.options = self.random.choice([1, 2, 3]), self.random.choice(OPTIONS)
        self.kinds = [
            "plain",
            *self.random.choice([[], ["aside"], ["checkpoint"], ["plain", "aside"]]),
        ]
        usual = self.iteration()
        often = self.random.choice([2, 2, 2, 20])
        self.iterations = [*[usual] * often, self.iteration(), usual, self.iteration()]

    def way(self) -> Way:
        if self.random.random() < 0.5:
            return [*((i, "plain") for i in range(self.parts)), (0, "aside")]
        some = range(self.random.choice([1, 2, 3]))
        return [(self.random.randrange(self.parts), self.random.choice(self.kinds)) for _ in some]

    def iteration(self) -> list[tuple[str, Any]]:
        pick = self.random.choice
        forwards: list[tuple[str, Any]] = [
            (pick(["", "", "", "no_sync"]), [self.way()] * pick([1, 2])) for _ in "ab"
        ]
        steps = [*forwards[: pick([1, 1, 2])]]
        steps += [("backward", self.random.random()) for _ in range(pick([1, 1, 2]))]
        if self.random.random() < 0.2:
            steps.insert(self.random.randrange(len(steps)), ("penalty", None))
        return steps

    def run(self) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(Net(self.parts), **self.options)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(4, 3, requires_grad=True)
        for iteration in self.iterations:
            outputs: list[Tensor] = []
            for what, given in iteration:
                if what == "backward":
                    some = random.Random(given).sample(outputs, 1 + int(given * len(outputs)))
                    torch.stack(some).sum().backward(retain_graph=True)
                elif what == "penalty":
                    model.module.aside.sum().backward()
                else:
                    now: AbstractContextManager[Any] = torch.enable_grad()
                    with model.no_sync() if what else now:
                        outputs += model(x, given)
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    """Enter a process group, and put back the hook that torch sets then."""
    hook = sys.excepthook
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()
    sys.excepthook = hook


@pytest.mark.full(but=3)
@pytest.mark.parametrize("seed", range(40))
def test_what_the_reducer_raises_was_said_and_what_is_certain_is_raised(seed: int) -> None:
    raised = ""
    with gradscope.watch() as scope:
        try:
            Program(seed).run()
        except RuntimeError as error:
            raised = str(error)
            scope.explain(error)
    found = {(each.code, str(each.certainty)) for each in scope.findings}
    assert not scope.recording().summary.notes
    assert ("GS602", "certain") not in found or gs602.ERROR in raised, (raised, found)
    assert gs602.ERROR not in raised or "GS602" in dict(found), (raised, found)
    assert (gs603.ERROR in raised) == (("GS603", "observed") in found), (raised, found)
