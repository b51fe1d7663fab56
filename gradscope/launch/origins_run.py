"""Reruns a program in a separate process, to record where each tensor comes from.

It ends at the second step of each optimizer.
"""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from gradscope.collect.tensor_tracer import TensorTracer
from gradscope.fixing.runs import Job
from gradscope.launch.trial import begin_rehearsal, end_rehearsal, overlay, rehearse

# Steps of each optimizer after which the rehearsal ends: the second shows what the first has left
# (a carried state, a gradient that was not reset).
STEPS = 2
# Steps of one optimizer after which it ends, whatever the others did: a critic may take five for
# each of its generator, and another optimizer may never step.
_MOST_STEPS = 12
# Engine calls after which it ends if no optimizer has stepped: micro-batches may come before the
# first step.
_MOST_CALLS = 40


class Trail(TensorTracer):
    """Follows a program from its beginning, and ends it when it has seen enough."""

    most_values = 3_000_000

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

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
            if self.is_over or (is_enough and calls >= self._job.stop_after):
                self.finish("enough")

    def finish(self, ended: str) -> NoReturn:
        """Write down what was seen, and end the process."""
        end_rehearsal(self._job, self.record(ended))


def main(job_file: str) -> NoReturn:
    """Do the job."""
    job = begin_rehearsal(job_file)
    rehearsal = Trail(job)
    overlay(job.sources)
    rehearsal.follow()  # to the end of the process
    rehearse(job, rehearsal.finish)
