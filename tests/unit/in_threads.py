"""Builds graphs in separate threads, whose nodes torch counts from zero."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    """Return what a new thread makes."""
    made: list[T] = []
    thread = threading.Thread(target=lambda: made.append(work()))
    thread.start()
    thread.join()
    return made[0]
