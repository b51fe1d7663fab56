"""Of nodes with one number, which threads give to theirs, the engine runs one first: it is the one that is called."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from in_threads import in_a_thread

import gradscope

SECOND_TIME = "second time"
IN_PLACE = "modified by an inplace operation"
KINDS = [
    kinds
    for kinds in itertools.product(("freed", "stale", "sound"), repeat=3)
    if {"freed", "stale"} <= set(kinds)
]


def part(kind: str, views: int) -> torch.Tensor:
    """Return what another thread makes: a node that is wrong in one way, and views of it."""
    leaf, factor = torch.ones(3, requires_grad=True), torch.ones(3)

    def make() -> torch.Tensor:
        made = leaf * factor
        for _ in range(views):
            made = made.view(3)
        return made

    made = in_a_thread(make)
    if kind == "freed":
        made.sum().backward()
    elif kind == "stale":
        factor.add_(1)
    return made


@pytest.mark.full(but=4)
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_the_hazard_that_the_engine_meets_first_is_called(kinds: tuple[str, ...]) -> None:
    for views in itertools.product(range(3), repeat=3):
        with gradscope.watch() as scope:
            parts = [part(kind, count) for kind, count in zip(kinds, views, strict=True)]
            before = len(scope.findings)
            total = in_a_thread(lambda parts=parts: torch.stack(parts).sum())  # type: ignore[misc]
            with pytest.raises(RuntimeError) as raised:
                total.backward()
        found = [f for f in scope.findings[before:] if f.certainty == "certain"]
        code = "GS101" if re.search(SECOND_TIME, str(raised.value)) else "GS201"
        assert [(f.code, f.missed) for f in found] == [(code, False)]
