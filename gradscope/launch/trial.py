"""Runs a program once more in a process of its own, with changed sources: how a fix is tried out.

Nobody imports this module but that process. What it sees goes into files, which are there also if the process is killed.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gradscope.errors import GradscopeError
from gradscope.fixing.verify import Job
from gradscope.launch.overlay import overlay
from gradscope.launch.runner import run_program
from gradscope.launch.target import Code, Module, Script, Target, header_of
from gradscope.launch.uncaught import die_of_interrupt

if TYPE_CHECKING:
    from gradscope.api.watch import Scope


def main(job_file: str) -> int:
    """Do the job; the program's exit status."""
    job: Job = pickle.loads(Path(job_file).read_bytes())
    target = _target(job)
    header = header_of(target, job.hooks)
    overlay(job.sources)
    with job.losses.open("w", buffering=1, encoding="utf-8") as losses:

        def start() -> AbstractContextManager[Scope]:
            from gradscope.api.watch import watch

            note_losses(losses)
            return watch(
                hooks=job.hooks, save=job.recording, stop_after=job.stop_after, header=header
            )

        try:
            ended = run_program(target, start)
        except GradscopeError as error:
            sys.stderr.write(f"gradscope: {error}\n")
            return 2
    if ended.interrupted:
        die_of_interrupt()
    return ended.outcome.exit_status or 0


def _target(job: Job) -> Target:
    """The program as the runner takes it."""
    if job.code is not None:
        return Code(job.code, job.argv)
    kind, _, name = job.script.partition(" ")
    return Module(name, job.argv) if kind == "-m" and name else Script(job.script, job.argv)


def note_losses(losses: TextIO) -> None:
    """Write the value of what each ``backward()`` starts from, where that is one number, with the line of the call."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from gradscope.hooks import wrap_engine
    from gradscope.program.sites import place_of, site_of

    process = os.getpid()

    def run(original: Any, t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = (
            kwargs.get("accumulate_grad", True) and len(t_outputs) == 1 and os.getpid() == process
        )
        if wanted and isinstance(t_outputs[0], torch.Tensor) and t_outputs[0].numel() == 1:
            with (
                suppress(Exception),
                torch._C.DisableTorchFunction(),
                _disable_current_modes(),
                torch.no_grad(),
            ):
                site = site_of(place_of(sys._getframe(1)))
                losses.write(
                    json.dumps([site.file, site.line, float(t_outputs[0])] if site else []) + "\n"
                )
        return original(t_outputs, *args, **kwargs)

    wrap_engine(run)
