"""Where the time of a watched loop goes: a profile by samples, of the fixed cost of a call."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import gradscope
from gradscope.collect.steady import READ_EACH

EVERY = 0.001  # seconds
PARTS = {
    "numbers_of": "walking the graph",
    "CallCounter.begin": "else before the engine, where a call is counted",
    "CallCounter.end": "after the engine, where a call is counted",
    "Backward._prepare": f"reading one call in {READ_EACH}: each node, and what it saved",
    "Backward._conclude": "booking those before it, observers",
    "Session._before_step": "before and after the optimizer's step",
    "Session._after_step": "before and after the optimizer's step",
}
"""By functions of gradscope: the innermost that runs counts."""

REST = "else of gradscope"
OWN = str(Path(gradscope.__file__).parent)


def part_of(frame: FrameType | None) -> str | None:
    """Return which part of gradscope runs; None outside of it."""
    found = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(OWN):
            part = PARTS.get(frame.f_code.co_qualname)
            if part is not None:
                return part
            if found is None and frame.f_code.co_qualname != "Backward.run":  # torch's engine
                found = REST
        frame = frame.f_back
    return found


@contextmanager
def sampled() -> Iterator[Counter[str | None]]:
    """Count what runs, once in each millisecond of CPU time."""
    samples: Counter[str | None] = Counter()
    before = signal.signal(signal.SIGPROF, lambda _, frame: samples.update([part_of(frame)]))
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        yield samples
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def microseconds(iteration: Callable[[], None], warm_up: int, count: int) -> dict[str, float]:
    """Return the microseconds that each part of gradscope takes in an iteration."""
    with gradscope.watch():
        for _ in range(warm_up):
            iteration()
        with sampled() as samples:
            start = time.process_time()
            for _ in range(count):
                iteration()
            each = (time.process_time() - start) / count
    total = samples.total() or 1
    parts = [*dict.fromkeys(PARTS.values()), REST]
    return {part: 1e6 * each * samples[part] / total for part in parts}
