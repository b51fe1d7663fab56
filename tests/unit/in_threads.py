"""Builds graphs in separate threads, whose nodes torch counts from zero."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_a_thread(work: Callable[[], T], name: str | None = None) -> T:
    """Return what a new thread makes."""
    made: list[T] = []
    thread = threading.Thread(target=lambda: made.append(work()), name=name)
    thread.start()
    thread.join()
    return made[0]
