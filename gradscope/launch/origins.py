"""Runs a program once more, in a process of its own, to see where each tensor comes from.

It ends at the second step of each optimizer.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import NoReturn

from gradscope.collect.following import Following
from gradscope.fixing.runs import Job
from gradscope.launch.guard import keep_inside
from gradscope.launch.runner import prepare
from gradscope.launch.trial import overlay, run_eagerly, target_of

STEPS = 2
"""Steps of each optimizer at which it ends."""
_MOST_STEPS = 12
"""Steps of one optimizer at which it ends, whatever others have done."""
_MOST_CALLS = 40
"""Engine calls at which it ends without any step."""


class Rehearsal(Following):
    """Follows a program from its beginning, and ends it when it has seen enough."""

    most_values = 3_000_000

    def __init__(self, output: Path, least_calls: int) -> None:
        super().__init__()
        self._output = output
        self._least_calls = least_calls
        """Engine calls before which it does not end."""

    def consider(self, *, is_step: bool) -> None:
        """End where all optimizers have stepped often enough, or there are many calls."""
        with self._lock:
            calls, counts = len(self._calls), Counter(each.optimizer for each in self._steps)
            if is_step:
                alive = (n for n, ref in enumerate(self._optimizers) if ref() is not None)
                has_most = max(counts.values(), default=0) >= _MOST_STEPS
                is_enough = has_most or all(counts[n] >= STEPS for n in alive)
            else:
                is_enough = not counts and calls > _MOST_CALLS
            if self.is_over or (is_enough and calls >= self._least_calls):
                self.finish("enough")

    def finish(self, ended: str) -> NoReturn:
        """Write down what was seen, and end the process at once: no code of the program's runs."""
        self._output.write_bytes(pickle.dumps(self.record(ended)))
        os._exit(0)


def main(job_file: str) -> NoReturn:
    """Do the job: the record goes where its notes would."""
    job: Job = pickle.loads(Path(job_file).read_bytes())
    run_eagerly()
    sys.dont_write_bytecode = True
    rehearsal = Rehearsal(job.notes, job.stop_after)
    overlay(job.sources)
    rehearsal.follow()  # to the end of the process
    if job.guarded:
        folder = os.path.dirname(job_file)
        keep_inside(folder, lambda doing: rehearsal.finish(f"stopped before {doing}"))
    program = prepare(target_of(job))
    try:
        program.run()
    except BaseException as error:  # a program may end in any way
        # Here, as its frames hold the parameters.
        rehearsal.finish(f"{type(error).__name__}: {error}")
    rehearsal.finish("end")
