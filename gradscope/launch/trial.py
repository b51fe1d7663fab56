"""Runs a program once more with changed sources, to try a fix out, in a process of its own.

What it sees goes into files, which are complete up to then if the process is killed.
"""

from __future__ import annotations

import pickle
import random
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from gradscope.errors import GradscopeError
from gradscope.fixing.runs import Job
from gradscope.launch.ending import die_of_interrupt
from gradscope.launch.overlay import overlay
from gradscope.launch.runner import run_program
from gradscope.launch.target import Code, Module, Script, Target, header_of

if TYPE_CHECKING:
    from gradscope.api.scope import Scope


def main(job_file: str) -> int:
    """Do the job, and return the program's exit status."""
    job: Job = pickle.loads(Path(job_file).read_bytes())
    target = _target(job)
    header = header_of(target, job.hooks)
    overlay(job.sources)
    with job.notes.open("w", buffering=1, encoding="utf-8") as notes:

        def start() -> AbstractContextManager[Scope]:
            from gradscope.api.watch import watch
            from gradscope.launch.witness import Witness

            random.seed(0)  # where the program does not choose, all runs draw the same
            Witness(notes, job.reference).start()
            hooks = job.hooks and not job.reference
            save, last = job.recording, job.stop_after
            return watch(hooks=hooks, save=save, stop_after=last, header=header, settings=False)

        try:
            ended = run_program(target, start)
        except GradscopeError as error:
            sys.stderr.write(f"gradscope: {error}\n")
            return 2
    if ended.interrupted:
        die_of_interrupt()
    return ended.outcome.exit_status or 0


def _target(job: Job) -> Target:
    """Return the program as the runner takes it."""
    if job.code is not None:
        return Code(job.code, job.argv)
    kind, _, name = job.script.partition(" ")
    return Module(name, job.argv) if kind == "-m" and name else Script(job.script, job.argv)
