"""Runs a program as Python's own command line would: a script, a module, or a piece of code."""

from __future__ import annotations

import builtins
import linecache
import os
import pkgutil
import runpy
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from gradscope.errors import GradscopeError
from gradscope.launch.ending import Ending, conclude, die_of_interrupt, wait_for_threads
from gradscope.launch.interpreter import Target
from gradscope.launch.torch_import import when_torch_is_imported
from gradscope.model import Outcome

if TYPE_CHECKING:
    from gradscope.api.scope import Scope

_runpy_main: Callable[..., None] = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What ``python -m`` itself calls: its frames belong to the tracebacks of such a program."""

_INPUT = "<stdin>"


@dataclass(frozen=True, slots=True)
class Ended:
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
        if os.getpid() != process:
            return
        try:
            scopes.append(watching.enter_context(watch()))
        except Exception as failure:  # told at the end: the program must not fail for it
            failures.append(failure)

    program = prepare(target)
    watching.callback(when_torch_is_imported(start))
    ending = _run_to_its_end(program, target, scopes, failures)
    if os.getpid() != process:
        if ending.interrupted:
            die_of_interrupt()
        raise SystemExit(ending.exit_status)
    outcome = Outcome(ending.exit_status, ending.exception, finished=True, ended=time.time())
    try:
        for scope in scopes:
            scope.finish(outcome)
        watching.close()
    except Exception as failure:
        failures.append(failure)
    for each in failures:
        if isinstance(each, GradscopeError):
            raise each
    return Ended(outcome, next(iter(scopes), None), ending.interrupted, next(iter(failures), None))


def _run_to_its_end(
    program: Program, target: Target, scopes: list[Scope], failures: list[Exception]
) -> Ending:
    """Run the program and its threads; print what Python prints of the exception that ends it."""
    error: BaseException | None = None
    try:
        program.run()
    except BaseException as raised:  # a program may end in any way
        error = raised
    if any(scope.is_stopped for scope in scopes):
        error = None  # that, or what the program has made of it
    for scope in scopes:
        try:
            if error is None:
                scope.look_back(program.main)
            else:
                scope.explain(error)
        except Exception as failure:  # the program's own end comes first
            failures.append(failure)
    ending = conclude(error)
    del error  # and with it the frames that it came through: Python has let go of them by now
    left = not ending.by_exit or sys.version_info >= (3, 14)  # before, it ended within the script
    if target[0] not in ("-m", "-c") and left:
        for name in ("__file__", "__cached__"):  # which Python sets only while the script runs
            program.main.__dict__.pop(name, None)
    wait_for_threads()
    return ending


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is ready to run in ``main``, now the interpreter's main module."""

    main: ModuleType
    run: Callable[[], None]


def prepare(target: Target) -> Program:
    """Make the interpreter ready for ``target``; raise GradscopeError if it cannot be read."""
    match target:
        case ["-m", name, *args]:
            main = _become_main(["-m", *args], os.getcwd())
            return Program(main, partial(_runpy_main, name))
        case ["-c", text, *args]:
            main = _become_main(["-c", *args], "")
            return Program(main, partial(_run_code, text + "\n", main))
        case ["-", *_]:
            if sys.stdin is None:
                raise GradscopeError("there is no program to read: stdin is closed; name a script")
            content = sys.stdin.buffer.read()
            main = _become_main([*target], "")
            return Program(main, partial(_run_script, _INPUT, content, main))
    return _prepare_script(target)


def _prepare_script(argv: Target) -> Program:
    path = argv[0]
    absolute = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    if pkgutil.get_importer(absolute) is not None:
        main = _become_main([*argv], absolute, even_if_safe=True)
        return Program(main, partial(_runpy_main, "__main__", alter_argv=False))
    try:
        content = SourceFileLoader("__main__", absolute).get_data(absolute)
    except OSError as error:
        raise GradscopeError(
            f"cannot run {path}: {error.strerror} (looked for {absolute});"
            " name a script that can be read"
        ) from None
    main = _become_main([*argv], os.path.dirname(os.path.realpath(path)))
    return Program(main, partial(_run_script, absolute, content, main))


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
