"""Watches the Python processes that a watched program starts.

Each writes a separate recording, and nothing else: what it prints is the program's alone. The
command line of a new interpreter goes through ``child.py``. A forked process begins a watch of
its own, one of ``multiprocessing`` when that has made it ready.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from dataclasses import replace as replaced
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gradscope.errors import GradscopeError, Handle, attempting, replace
from gradscope.launch.interpreter import command_of, watched
from gradscope.launch.runner import when_torch_is_imported
from gradscope.model import Header, Outcome, Recording
from gradscope.model.calls import number_given

if TYPE_CHECKING:
    from gradscope.api.scope import Scope
    from gradscope.api.watch import watch

BOOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
_MOST_UNWATCHED = 5  # commands that the report names
_OF_MULTIPROCESSING = "--multiprocessing-fork"
"""With this argument ``multiprocessing`` starts an interpreter for its helper process."""
_FORKSERVER = "from multiprocessing.forkserver import"
"""Stands in the code that it gives the interpreter from which it forks them."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """How the children of a run are watched; ``save`` names their files, with ``{pid}`` in it.

    ``options`` are those of each watch, ``script`` and ``argv`` are the program's.
    """

    run: str
    save: str
    options: dict[str, Any]
    script: str
    argv: Sequence[str]

    @classmethod
    def of(cls, header: Header, save: Path | None, options: dict[str, Any]) -> ChildPlan:
        """Return the plan of a run that begins now, and saves its own recording in ``save``."""
        # No child needs these, and the program may leave no path to import them from.
        import shutil  # noqa: F401
        import tempfile

        import gradscope.record.file  # noqa: F401

        run = f"{os.getpid()}-{time.time_ns():x}"
        if save is None:
            pattern = Path(tempfile.gettempdir(), f"gradscope-{run}", "{pid}.gscope")
        else:
            pattern = save if "{" in save.name else save.with_stem(save.stem + "-{rank}")
        return cls(run, str(pattern.absolute()), options, header.script, header.argv)

    def watch(self, header: Header, **more: Any) -> watch:
        """Return the watch of a process of this run, which has imported torch by now."""
        from gradscope.api.watch import watch

        return watch(header=header, **self.options, **more)

    def header_of(self, header: Header) -> Header:
        """Return the header of a child; one of ``multiprocessing`` runs a part of the program."""
        is_part = _OF_MULTIPROCESSING in header.argv or _FORKSERVER in (header.code or "")
        own = replaced(header, script=self.script, argv=tuple(self.argv), code=None)
        return own if is_part else header

    @property
    def is_kept(self) -> bool:
        """Whether the user asked for the recordings."""
        return Path(self.save).parent.name != f"gradscope-{self.run}"

    def recordings(self) -> list[tuple[Path, Recording]]:
        """Return what the children of this run have written, with its files."""
        return [(file, found) for file, found in self._written() if found.calls or found.findings]

    def _written(self) -> Iterator[tuple[Path, Recording]]:
        from gradscope.record.file import load

        pattern = Path(filled(self.save, "*", "*"))
        for file in sorted(pattern.parent.glob(pattern.name)):
            with suppress(GradscopeError):
                recording = load(file)
                header = recording.header
                if header.run == self.run and not self.run.startswith(f"{header.pid}-"):
                    yield file, recording

    def tidy(self) -> None:
        """Remove the recordings that the user did not ask for, and those with nothing in them: of
        processes that were killed, or became another program.
        """
        import shutil

        from gradscope.record.file import is_alive

        if not self.is_kept:
            shutil.rmtree(Path(self.save).parent, ignore_errors=True)
            return
        for file, found in self._written():
            if not (found.calls or found.findings or is_alive(found.header.pid)):
                file.unlink(missing_ok=True)


def filled(pattern: str, rank: object, process: object) -> str:
    """Return a file's name with rank and number of the process in it."""
    return pattern.replace("{rank}", str(rank)).replace("{pid}", str(process))


def own_file(file: Path | None, header: Header) -> Path | None:
    """Return the file of this process: of several ranks that were told the same, each has one."""
    if file is None or not file.name:
        return file
    # A task of srun's may be in no process group, or learn its rank later.
    rank = number_given("SLURM_PROCID") if header.rank is None else header.rank
    ranks = max(header.ranks, number_given("SLURM_STEP_NUM_TASKS") or 1)
    if "{" not in file.name and rank is not None and ranks > 1:
        file = file.with_stem(file.stem + "-{rank}")
    return file.with_name(filled(file.name, os.getpid() if rank is None else rank, os.getpid()))


class ChildWatch:
    """The watch of this process, which is a child; it begins once torch is there."""

    def __init__(self, plan: ChildPlan, header: Header) -> None:
        self.plan = plan
        self.header = replaced(header, run=plan.run)
        self._watching = ExitStack()
        self._scope: Scope | None = None

    def __enter__(self) -> Scope:
        process = os.getpid()
        file = Path(filled(self.plan.save, process, process))
        file.parent.mkdir(parents=True, exist_ok=True)
        # Settings hold where the recordings are put together.
        watching = self.plan.watch(replaced(self.header, pid=process), save=file, settings=False)
        try:
            self._scope = self._watching.enter_context(watching)
        except GradscopeError as error:  # no fault of the program's: it runs unwatched
            raise RuntimeError(str(error)) from error
        return self._scope

    def __exit__(self, *_: object) -> None:
        """End the watch; keep the recording only if there is something in it, under its rank."""
        scope, self._scope = self._scope, None
        has_called = scope is not None and scope.summary.backward_calls
        self._watching.close()
        if scope is None or scope.writer.path is None:
            return
        file, rank = scope.writer.path, scope.writer.header.rank
        if not (has_called or scope.findings):
            file.unlink(missing_ok=True)
        elif rank is not None:
            named = Path(filled(self.plan.save, rank, os.getpid()))
            if not self._is_taken(named):
                with suppress(OSError):
                    file.replace(named)

    def _is_taken(self, file: Path) -> bool:
        """Return whether another process of this run has written a file."""
        from gradscope.record.file import load

        with suppress(GradscopeError):
            return load(file).header.run == self.plan.run
        return False

    def begin_in_fork(self, before_its_end: Callable[[Callable[[], None]], object]) -> None:
        """Begin the watch of a forked process; ``before_its_end`` has a function called then."""
        process = os.getpid()

        def end() -> None:
            with suppress(Exception):  # ours must not become the program's
                if os.getpid() != process:
                    return  # forked from this one
                if self._scope is not None:
                    self._scope.outcome = Outcome(finished=True, ended=time.time())
                self.__exit__()

        def begin() -> None:
            with suppress(Exception):
                self.__enter__()

        inherited = sys.modules.get("gradscope.api.watch")
        if inherited is not None:
            inherited.abandon()
        self._watching = ExitStack()
        self._scope = None
        before_its_end(end)
        when_torch_is_imported(begin)


class Children:
    """Sees the processes that this one starts; ``unwatched`` are commands that would watch others.

    ``header`` is that of this process.
    """

    def __init__(self, plan: ChildPlan, header: Header) -> None:
        self.plan = plan
        self.unwatched: list[str] = []
        self.failures: dict[str, None] = {}
        """What failed in gradscope while the program started others, each once."""
        self.header = header
        self._undo = Handle()
        self._process = os.getpid()

    def __enter__(self) -> Children:
        """Lead what is started from now on through ``child.py``."""
        import _posixsubprocess
        import subprocess

        for module in (_posixsubprocess, subprocess):
            for name in ("fork_exec", "_fork_exec"):
                if hasattr(module, name):
                    self._replace(module, name, self._fork_exec)
        for name in ("posix_spawn", "posix_spawnp"):  # by which subprocess starts, since 3.13
            if hasattr(os, name):
                self._replace(os, name, self._posix_spawn)
        self._replace(os, "system", self._system)
        _active.append(self)
        self._undo.callback(_active.remove, self)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Leave what is started from now on alone; once is enough."""
        self._undo.close()

    def _replace(self, module: Any, name: str, by: Callable[..., Any]) -> None:
        original = getattr(module, name)
        self._undo.add(replace(module, name, wraps(original)(partial(by, original))))

    def attempting(self) -> AbstractContextManager[None]:
        """Do some work of ours; where it fails, the program starts what it wanted to start."""
        return attempting(lambda e: self.failures.setdefault(f"{type(e).__name__}: {e}"))

    def _fork_exec(self, original: Any, argv: Any, executables: Any, *rest: Any) -> Any:
        with self.attempting():
            argv, executables = self._led(argv, executables)
        return original(argv, executables, *rest)

    def _posix_spawn(self, original: Any, path: Any, argv: Any, *rest: Any, **options: Any) -> Any:
        import shutil

        if isinstance(path, str | bytes | os.PathLike):
            with self.attempting():
                found = shutil.which(path) or path  # posix_spawnp looks on the PATH
                argv, (path,) = self._led(argv, (found,))
        return original(path, argv, *rest, **options)

    def _led(self, argv: Any, executables: Any) -> tuple[Any, Any]:
        """Return the command line as it is started, and the files to look for."""
        if self not in _active:  # another tool has kept what we put in, and calls it still
            return argv, executables
        try:
            words = [os.fsdecode(word) for word in argv]
            files = [os.fsdecode(file) for file in executables]
        except TypeError:  # no command line: Python says so
            return argv, executables
        # Several files are the places on the PATH at which the name is looked for.
        file = next((file for file in files if os.access(file, os.X_OK)), "")
        command = command_of(file, words)
        if command is None:
            self._note(words)
            return argv, executables
        plan = json.dumps(asdict(self.plan))
        led = [*command.python, BOOT, plan, *command.program]
        if command.program[0] == file:  # a script that names this Python in its first line
            return [sys.executable, *led[1:]], [os.fsencode(sys.executable)]
        return led, executables

    def _system(self, original: Any, command: Any) -> Any:
        if isinstance(command, str | bytes):
            with self.attempting():
                self._note(["sh", "-c", os.fsdecode(command)])
        return original(command)

    def _note(self, words: Sequence[str]) -> None:
        """Remember a command that starts Python in a way that is not followed."""
        is_own = self in _active and os.getpid() == self._process
        if is_own and len(self.unwatched) < _MOST_UNWATCHED:
            command = watched(words)
            if command is not None and command not in self.unwatched:
                self.unwatched.append(command)


_active: list[Children] = []


def _forked() -> None:
    """Have a process that was just forked watched, if it will run the program's code."""
    by = sys._getframe(1).f_globals.get("__name__", "")
    if not _active or by in _STARTING_ANOTHER:
        return
    children = _active[-1]
    with children.attempting():
        watching = ChildWatch(children.plan, children.header)
        if not by.startswith("multiprocessing."):
            watching.begin_in_fork(_before_exit)
            return
        util: Any = sys.modules["multiprocessing.util"]
        before_its_end = partial(util.Finalize, None, exitpriority=-100)
        util.register_after_fork(watching, lambda _: watching.begin_in_fork(before_its_end))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)

_STARTING_ANOTHER = (__name__, "subprocess")
"""Who forks with a function to call before the other program begins (``preexec_fn``)."""


def _before_exit(end: Callable[[], None]) -> None:
    """Call ``end`` when the interpreter ends, or before it is left at once."""
    leave = os._exit

    @wraps(leave)
    def end_and_leave(status: int) -> NoReturn:
        end()
        leave(status)

    replace(os, "_exit", end_and_leave)
    atexit.register(end)
