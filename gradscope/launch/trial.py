"""Reruns a program in a separate process with changed sources, to try out a fix.

What it sees goes into files, which are complete up to then if the process is killed.
"""

from __future__ import annotations

import linecache
import os
import pickle
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gradscope.errors import GradscopeError
from gradscope.fixing.patch import decoded
from gradscope.fixing.runs import REFUSED, Job
from gradscope.launch.interpreter import Target, header_of
from gradscope.launch.runner import prepare, run_program

if TYPE_CHECKING:
    from gradscope.api.scope import Scope


def main(job_file: str) -> int:
    """Do the job, and return the program's exit status."""
    job: Job = pickle.loads(Path(job_file).read_bytes())
    target = target_of(job)
    header = header_of(target, job.hooks)
    overlay(job.sources)
    if job.sandboxed:
        sys.dont_write_bytecode = True
    with job.notes.open("w", buffering=1, encoding="utf-8") as notes:

        def start() -> AbstractContextManager[Scope]:
            from gradscope.api.watch import watch
            from gradscope.launch.guard import keep_inside, note_losses

            if job.sandboxed:
                keep_inside(os.path.dirname(job_file), lambda doing: os._exit(REFUSED))
            random.seed(0)  # where the program does not choose, all runs draw the same
            note_losses(notes)
            save, last = job.recording, job.stop_after
            return watch(hooks=job.hooks, save=save, stop_after=last, header=header, settings=False)

        try:
            ended = run_program(target, start)
        except GradscopeError as error:
            sys.stderr.write(f"gradscope: {error}\n")
            return 2
    return ended.leave()


def begin_rehearsal(job_file: str) -> Job:
    """Return the job of a process that is there to rehearse a program, and compiles nothing from
    now on; the record goes where its notes would.
    """
    job: Job = pickle.loads(Path(job_file).read_bytes())
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what is compiled cannot be followed
    if (config := sys.modules.get("torch._dynamo.config")) is not None:  # it has read that before
        vars(config)["disable"] = True
    sys.dont_write_bytecode = True
    return job


def rehearse(job: Job, finish: Callable[[str], NoReturn]) -> NoReturn:
    """Run the program, and hand over how it ended, or before what it was stopped."""
    from gradscope.launch.guard import keep_inside

    if job.sandboxed:
        keep_inside(str(job.notes.parent), lambda doing: finish(f"stopped before {doing}"))
    program = prepare(target_of(job))
    try:
        program.run()
    except BaseException as error:  # a program may end in any way
        finish(f"{type(error).__name__}: {error}")  # here, as its frames hold the parameters
    finish("end")


def end_rehearsal(job: Job, record: object) -> NoReturn:
    """Write down what was seen, and end the process at once: no code of the program's runs."""
    job.notes.write_bytes(pickle.dumps(record))
    os._exit(0)


def target_of(job: Job) -> Target:
    """Return the program as the runner takes it."""
    if job.code is not None:
        return ["-c", job.code, *job.argv]
    is_module = job.script.startswith("-m ")
    return [*(job.script.split(" ", 1) if is_module else (job.script,)), *job.argv]


def overlay(
    sources: Mapping[str, bytes], compiled_anew: Callable[[str], bool] = lambda path: False
) -> None:
    """Load these files, by their absolute paths, with this content for the rest of the process.

    All Python source, the script's too, comes through one loader; tracebacks and ``inspect`` ask
    ``linecache``, and so does the hook for uncaught exceptions, as printing them would read the
    files. Of these, and of files that are ``compiled_anew``, compiled copies are neither read nor
    written.
    """
    loader: Any = SourceFileLoader
    read_file, stat_file = loader.get_data, loader.path_stats

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        content = sources.get(os.path.abspath(path))
        if content is None:
            return read_file(self, path)  # type: ignore[no-any-return]
        lines = [line.rstrip("\r\n") + "\n" for line in decoded(path, content).lines]
        no_date = None  # which keeps linecache from looking at the file
        linecache.cache[path] = (len(content), no_date, lines, path)
        return content

    def path_stats(self: SourceFileLoader, path: str) -> Any:
        if os.path.abspath(path) in sources or compiled_anew(path):
            raise OSError(f"no compiled copy of {path} is taken")
        return stat_file(self, path)

    loader.get_data, loader.path_stats = get_data, path_stats
    if sources:
        sys.excepthook = traceback.print_exception
