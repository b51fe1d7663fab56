"""
How many random programs a property is tried on: the same in each run, in a full round some fresh, many when asked for.

A failure names the seed and the command that draws the same programs again. ``pytest -m long`` runs the
long rounds, with fresh programs; ``GRADSCOPE_PROGRAMS`` says how many, ``GRADSCOPE_SEED`` draws given ones.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

SEED = int(os.environ.get("GRADSCOPE_SEED") or random.SystemRandom().randrange(2**32))
LONG = int(os.environ.get("GRADSCOPE_PROGRAMS", "2000"))


@dataclass(frozen=True)
class Round:
    """``share`` of the programs that a test asks for; ``seed`` is None for those that never change."""

    share: float
    seed: int | None

    def try_out(
        self, check: Callable[..., None], count: int, **drawn: st.SearchStrategy[Any]
    ) -> None:
        """Call ``check`` with the values drawn, for about ``count`` programs."""
        test = settings(
            max_examples=max(1, round(count * self.share)),
            deadline=None,
            derandomize=self.seed is None,
            suppress_health_check=[HealthCheck.too_slow],
            # A failure is replayed by its seed; making it small takes minutes, so only on request.
            phases=[Phase.generate, Phase.shrink]
            if "GRADSCOPE_SEED" in os.environ
            else [Phase.generate],
        )(given(**drawn)(_in_a_thread(check)))
        if self.seed is None:
            test()
            return
        try:
            seed(self.seed)(test)()
        except BaseException as error:
            name = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
            error.add_note(f"seed {self.seed}: GRADSCOPE_SEED={self.seed} pytest '{name}'")
            raise


def _in_a_thread(check: Callable[..., None]) -> Callable[..., None]:
    """Return a check that runs where no frame of pytest and hypothesis lies below, to be read on."""

    def apart(**drawn: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            failed = pool.submit(check, **drawn).exception()
        if failed is not None:
            raise failed

    return apart


rounds = pytest.mark.parametrize(
    "programs_of",
    [
        pytest.param(Round(0.1, None), id="few"),
        pytest.param(Round(0.9, None), id="fixed", marks=pytest.mark.full),
        pytest.param(Round(0.1, SEED), id="fresh", marks=pytest.mark.full),
        pytest.param(Round(LONG / 100, SEED), id="long", marks=pytest.mark.long),
    ],
)
"""Asks for the parameter ``programs_of``; a long round has ``LONG`` programs where a test asks for 100."""
