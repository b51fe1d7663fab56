"""Builds graphs in separate threads, whose nodes torch counts from zero."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def in_a_thread(work: Callable[[], T], name: str | None = None) -> T:
    """Return what a new thread makes."""
    made: list[T] = []
    thread = threading.Thread(target=lambda: made.append(work()), name=name)
    thread.start()
    thread.join()
    return made[0]


def with_low_numbers(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test in a thread of its own, which has built a few nodes. One that has another thread
    build until its numbers are the same would take seconds behind tests that built a million.
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        leaf = torch.ones(1, requires_grad=True)
        for _ in range(30):
            leaf + 1
        test(*args, **kwargs)

    @functools.wraps(test)
    def in_its_thread(*args: P.args, **kwargs: P.kwargs) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run, *args, **kwargs).result()

    return in_its_thread
