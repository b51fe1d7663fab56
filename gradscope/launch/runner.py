"""Runs a program as Python's own command line would: a script, a module, or a piece of code.

It is watched from its import of torch on, which gradscope never does first, and ends as the
interpreter would end it: its uncaught exception, its threads, its exit status.
"""

from __future__ import annotations

import builtins
import graphlib  # noqa: F401
import linecache
import os
import pkgutil
import runpy
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from gradscope.errors import GradscopeError, Handle, attempting, replace
from gradscope.launch.interpreter import Target
from gradscope.model import Failure, Outcome
from gradscope.program.undisturbed import GCPaused

if TYPE_CHECKING:
    from gradscope.api.scope import Scope

if sys.platform == "linux":  # this and graphlib are for a watch, whose parts are imported from
    import resource  # noqa: F401 - the program's path

_runpy_main: Callable[..., None] = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What ``python -m`` itself calls: its frames belong to the tracebacks of such a program."""

_INPUT = "<stdin>"


class Ended(NamedTuple):
    """How a program ended.

    ``scope`` is None if it never imported torch, or if watching it failed: then ``failure`` is why.
    """

    outcome: Outcome
    scope: Scope | None
    interrupted: bool = False
    failure: Exception | None = None

    def leave(self) -> int:
        """Return the program's exit status, or die of Ctrl-C as it did."""
        if self.interrupted:
            die_of_interrupt()
        return self.outcome.exit_status or 0


def run_program(target: Target, watch: Callable[[], AbstractContextManager[Scope]]) -> Ended:
    """Run ``target`` as ``__main__``; return how it ended, once its threads have ended too.

    ``watch`` is entered when the program imports torch. ``sys.argv``, ``sys.path`` and ``__main__``
    stay the program's: its exit handlers and destructors have yet to run. A forked child that comes
    to its end leaves the interpreter from here.

    Raise GradscopeError if the program cannot be found or read, or if ``watch`` raised it. Any
    other failure of gradscope leaves the program alone: it runs on unwatched.
    """
    process = os.getpid()
    watching = ExitStack()
    scopes: list[Scope] = []
    failures: list[Exception] = []

    def start() -> None:
        if os.getpid() == process:
            with attempting(failures.append):  # told at the end
                scopes.append(watching.enter_context(watch()))

    program = prepare(target)
    watching.callback(when_torch_is_imported(start))
    ending, failure = _run_to_its_end(program, target, scopes, failures)
    if os.getpid() != process:
        if ending.interrupted:
            die_of_interrupt()
        raise SystemExit(ending.exit_status)
    how = ending.exit_status, ending.exception
    outcome = Outcome(*how, finished=True, ended=time.time(), failure=failure)
    with attempting(failures.append):
        for scope in scopes:
            scope.outcome = outcome
        watching.close()
    for each in failures:
        if isinstance(each, GradscopeError):
            raise each
    return Ended(outcome, next(iter(scopes), None), ending.interrupted, next(iter(failures), None))


def _run_to_its_end(
    program: Main, target: Target, scopes: list[Scope], failures: list[Exception]
) -> tuple[Ending, Failure | None]:
    """Run the program and its threads; print what Python prints of the exception that ends it."""
    error: BaseException | None = None
    failure: Failure | None = None
    try:
        program.run()
    except BaseException as raised:  # a program may end in any way
        error = raised
    if any(scope.is_stopped for scope in scopes):
        error = None  # that, or what the program has made of it
    for scope in scopes:
        with attempting(failures.append):  # the program's own end comes first
            if error is None:
                scope.look_back(program.main)
            else:
                failure = scope.explain(error)
    ending = conclude(error)
    del error  # and with it the frames that it came through: Python has let go of them by now
    left = not ending.by_exit or sys.version_info >= (3, 14)  # before, it ended within the script
    if target[0] not in ("-m", "-c") and left:
        for name in ("__file__", "__cached__"):  # which Python sets only while the script runs
            program.main.__dict__.pop(name, None)
    wait_for_threads()
    return ending, failure


class Main(NamedTuple):
    """A program that is ready to run in ``main``, now the interpreter's main module."""

    main: ModuleType
    run: Callable[[], None]


def prepare(target: Target) -> Main:
    """Make the interpreter ready for ``target``; raise GradscopeError if it cannot be read."""
    match target:
        case ["-m", name, *args]:
            return Main(_become_main(["-m", *args], os.getcwd()), partial(_runpy_main, name))
        case ["-c", text, *args]:
            main = _become_main(["-c", *args], "")
            return Main(main, partial(_run_code, text + "\n", main))
        case ["-", *_]:
            if sys.stdin is None:
                raise GradscopeError("there is no program to read: stdin is closed; name a script")
            content = sys.stdin.buffer.read()
            main = _become_main([*target], "")
            return Main(main, partial(_run_script, _INPUT, content, main))
    return _prepare_script(target)


def _prepare_script(argv: Target) -> Main:
    path = argv[0]
    absolute = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    if pkgutil.get_importer(absolute) is not None:
        main = _become_main([*argv], absolute, even_if_safe=True)
        return Main(main, partial(_runpy_main, "__main__", alter_argv=False))
    try:
        content = SourceFileLoader("__main__", absolute).get_data(absolute)
    except OSError as error:
        why = f"{error.strerror} (looked for {absolute}); name a script that can be read"
        raise GradscopeError(f"cannot run {path}: {why}") from None
    main = _become_main([*argv], os.path.dirname(os.path.realpath(path)))
    return Main(main, partial(_run_script, absolute, content, main))


def _become_main(argv: list[str], first_on_path: str, even_if_safe: bool = False) -> ModuleType:
    """Put the program's ``__main__``, arguments and import path in the place of gradscope's."""
    main = ModuleType("__main__")
    main.__loader__ = BuiltinImporter
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = argv
    if not sys.flags.safe_path:
        sys.path[:1] = [first_on_path]
    elif even_if_safe:
        sys.path.insert(0, first_on_path)
    return main


def _run_script(path: str, content: bytes, main: ModuleType) -> None:
    main.__file__ = path
    main.__dict__["__cached__"] = None
    try:
        exec(_compile_script(path, content, main), main.__dict__)
    finally:
        for stream in (sys.stderr, sys.stdout):
            with suppress(Exception):  # as in Python, where the flush at the exit complains
                stream.flush()


def _compile_script(path: str, content: bytes, main: ModuleType) -> CodeType:
    if path.endswith(".pyc"):
        main.__loader__ = SourcelessFileLoader("__main__", path)
        code = main.__loader__.get_code("__main__")
        assert code is not None
        return code
    if path != _INPUT:
        main.__loader__ = SourceFileLoader("__main__", path)
    return compile(content, path, "exec", dont_inherit=True)


def _run_code(text: str, main: ModuleType) -> None:
    if sys.version_info >= (3, 14):
        text = textwrap.dedent(text)
    code = compile(text, "<string>", "exec", dont_inherit=True)
    if sys.version_info >= (3, 13):
        # The first 3.13 keeps such sources under their file's name.
        by_code = hasattr(linecache, "_interactive_cache")
        linecache._register_code(code if by_code else "<string>", text, "<string>")  # type: ignore[attr-defined]
    exec(code, main.__dict__)


def when_torch_is_imported(then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then`` once, now or at the end of torch's import; return what cancels it.

    To import torch before the program does would change the program: what it sets before its own
    import (``OMP_NUM_THREADS``, warning filters, ``sys.path``) would come too late.
    """
    if "torch" in sys.modules:
        then()
        return lambda: None
    finder = _TorchFinder(then)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _TorchFinder(MetaPathFinder):
    """Finds torch as the other finders do, and makes its loader report the end of the import."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then
        self._loader = Handle()

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            # Set on the instance, as tools ask the loader's type for sources and resources.
            execute = partial(self._execute, spec.loader.exec_module)
            self._loader = replace(spec.loader, "exec_module", execute)
        return spec

    def _execute(self, original: Callable[[ModuleType], None], module: ModuleType) -> None:
        self._loader.close()
        original(module)
        self.remove()
        # As the import system is about to note itself. Until then another thread that asks for
        # torch, as C++ code of torch does, would wait for this one.
        if module.__spec__ is not None:
            module.__spec__._initializing = False  # type: ignore[attr-defined]
        with GCPaused():  # it would look through all of torch, several times
            self.then()


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IMPORT_SYSTEM = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_LAST = ("last_exc", "last_type", "last_value", "last_traceback")
# What a shell shows for a program that died of Ctrl-C: 128, and the number of SIGINT.
INTERRUPTED = 130


class Ending(NamedTuple):
    """What follows from the end of the main thread; ``by_exit`` is True for a SystemExit."""

    exit_status: int = 0
    exception: str | None = None
    by_exit: bool = False
    interrupted: bool = False


def conclude(error: BaseException | None) -> Ending:
    """Print what the interpreter prints of an uncaught exception; return what follows."""
    if error is None:
        return Ending()
    if isinstance(error, SystemExit):
        return Ending(_exit_status(error), by_exit=True)
    remove_own_frames(error)
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    exit_of_hook = _call_excepthook(error)
    if exit_of_hook is not None:
        return Ending(_exit_status(exit_of_hook), describe(error), by_exit=True)
    interrupted = isinstance(error, KeyboardInterrupt)
    return Ending(INTERRUPTED if interrupted else 1, describe(error), interrupted=interrupted)


def describe(error: BaseException) -> str:
    """Return the last line of a traceback, ``RuntimeError: message``, without notes."""
    lines = traceback.format_exception_only(error)
    return next((line for line in lines if not line.startswith(" ")), lines[-1]).rstrip("\n")


def remove_own_frames(error: BaseException) -> None:
    """Remove gradscope's frames from the tracebacks of an exception and of its causes."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_own_frames(one.__traceback__)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _without_own_frames(entry: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(PACKAGE):
            kept.append(entry)
        else:  # below ours, Python leaves frames of its import system, which it hides elsewhere
            while kept and kept[-1].tb_frame.f_code.co_filename in _IMPORT_SYSTEM:
                kept.pop()
        entry = entry.tb_next
    for one, following in zip(kept, [*kept, None][1:], strict=True):
        # Each assignment costs a walk to the end: deep tracebacks stay as they are.
        if one.tb_next is not following:
            one.tb_next = following
    return kept[0] if kept else None


def _call_excepthook(error: BaseException) -> SystemExit | None:
    """Hand ``error`` to ``sys.excepthook``; return the SystemExit that the hook raised, if any."""
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _write_stderr("sys.excepthook is missing\n")
        hook = sys.__excepthook__
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return leaving
    except BaseException as failure:  # as the interpreter does, which continues
        remove_own_frames(failure)
        _write_stderr("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        _write_stderr("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return None


def _exit_status(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        fits = -(2**63) <= code < 2**63
        return (code if fits else -1) & (0xFF if os.name == "posix" else 0xFFFFFFFF)
    _write_stderr(f"{code}\n")
    return 1


def _write_stderr(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
    else:
        with suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))


def wait_for_threads() -> None:
    """Wait for the threads that are not daemons, as the interpreter does first when it exits."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:  # at Ctrl-C here, the interpreter prints it and continues
        remove_own_frames(error)
        if sys.version_info < (3, 13):
            _write_stderr(f"Exception ignored in: {threading!r}\n")
        elif sys.version_info >= (3, 14):
            _write_stderr("Exception ignored on threading shutdown:\n")
        _write_stderr("Traceback (most recent call last):\n")
        _write_stderr("".join(traceback.format_tb(error.__traceback__)))
        _write_stderr(f"{type(error).__qualname__}: {error}\n")


def die_of_interrupt() -> NoReturn:
    """Run the exit handlers and die of SIGINT, as for an uncaught KeyboardInterrupt.

    Nothing is printed for that, and the exit handlers find ``sys`` as the program left it.
    """
    restored = {name: getattr(sys, name) for name in ("excepthook", *_LAST) if hasattr(sys, name)}

    def say_nothing(*_: object) -> None:
        for name, value in restored.items():
            setattr(sys, name, value)

    sys.excepthook = say_nothing
    raise KeyboardInterrupt
