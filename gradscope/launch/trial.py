"""Runs a program once more with changed sources, to try a fix out, in a process of its own.

What it sees goes into files, which are complete up to then if the process is killed.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from gradscope.errors import GradscopeError
from gradscope.fixing.verify import Job
from gradscope.launch.ending import die_of_interrupt
from gradscope.launch.overlay import overlay
from gradscope.launch.runner import run_program
from gradscope.launch.target import Code, Module, Script, Target, header_of

if TYPE_CHECKING:
    from gradscope.api.watch import Scope


def main(job_file: str) -> int:
    """Do the job, and return the program's exit status."""
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
    """Return the program as the runner takes it."""
    if job.code is not None:
        return Code(job.code, job.argv)
    kind, _, name = job.script.partition(" ")
    return Module(name, job.argv) if kind == "-m" and name else Script(job.script, job.argv)


def note_losses(losses: TextIO) -> None:
    """Write the line of each ``backward()`` that starts from a single number, and that number."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from gradscope.hooks import wrap_engine
    from gradscope.program.sites import place_of, site_of

    process = os.getpid()

    def note(root: Any, frame: FrameType) -> None:
        if not isinstance(root, torch.Tensor) or root.numel() != 1:
            return
        unseen = (torch._C.DisableTorchFunction, _disable_current_modes, torch.no_grad)
        with suppress(Exception), ExitStack() as stack:
            for enter in unseen:
                stack.enter_context(enter())
            site = site_of(place_of(frame))
            line = [site.file, site.line, float(root)] if site else []
            losses.write(json.dumps(line) + "\n")

    def run(original: Any, t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        is_backward = kwargs.get("accumulate_grad", True)
        if is_backward and len(t_outputs) == 1 and os.getpid() == process:
            note(t_outputs[0], sys._getframe(1))
        return original(t_outputs, *args, **kwargs)

    wrap_engine(run)
