"""Runs a program as Python's own command line would: a script, a module, or a piece of code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradscope.errors import GradscopeError
from gradscope.launch.ending import (
    Ending,
    conclude,
    die_of_interrupt,
    remove_own_frames,
    wait_for_threads,
)
from gradscope.launch.program import Program, prepare
from gradscope.launch.target import Input, Script, Target
from gradscope.launch.torch_import import when_torch_is_imported
from gradscope.model import Outcome

if TYPE_CHECKING:
    from gradscope.api.scope import Scope


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    ``scope`` is None if it never imported torch, or if watching it failed: then ``failure`` is why.
    """

    outcome: Outcome
    scope: Scope | None
    interrupted: bool = False
    failure: Exception | None = None


def run_program(target: Target, watch: Callable[[], AbstractContextManager[Scope]]) -> Ended:
    """Run ``target`` as ``__main__``; return how it ended, once its threads have ended too.

    ``watch`` is entered when the program imports torch. ``sys.argv``, ``sys.path`` and ``__main__``
    stay the program's: its exit handlers and destructors have yet to run. A forked child that comes
    to its end leaves the interpreter from here.

    Raise GradscopeError if the program cannot be found or read, or if ``watch`` raised it. Any
    other failure of ours leaves the program alone: it runs on unwatched.
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
    try:
        ending = _run_to_its_end(program, target, scopes, failures)
    except GradscopeError:
        watching.close()
        raise
    if os.getpid() != process:
        if ending.interrupted:
            die_of_interrupt()
        raise SystemExit(ending.exit_status)
    outcome = Outcome(ending.exit_status, ending.exception, finished=True, ended=time.time())
    try:
        for scope in scopes:
            scope.finish(outcome)
        watching.close()
    except GradscopeError:
        raise
    except Exception as failure:
        failures.append(failure)
    if failures and isinstance(failures[0], GradscopeError):
        raise failures[0]
    return Ended(
        outcome,
        scopes[0] if scopes else None,
        ending.interrupted,
        failures[0] if failures else None,
    )


def _run_to_its_end(
    program: Program, target: Target, scopes: list[Scope], failures: list[Exception]
) -> Ending:
    """Run the program and its threads; print what Python prints of the exception that ends it."""
    error = _run(program)
    if _was_not_found(error):
        assert error is not None
        reason = str(error.__context__).rstrip(".")
        raise GradscopeError(
            f"cannot run {target}: {reason}; see that it can be imported from here"
        ) from None
    if scopes and _is_stop(error):
        error = None
        scopes[0].note_stop()
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
    if isinstance(target, Script | Input) and left:
        for name in ("__file__", "__cached__"):  # which Python sets only while the script runs
            program.main.__dict__.pop(name, None)
    wait_for_threads()
    return ending


def _run(program: Program) -> BaseException | None:
    try:
        program.run()
    except BaseException as error:  # a program may end in any way
        return error
    return None


def _is_stop(error: BaseException | None) -> bool:
    from gradscope.api.scope import StopRun

    return isinstance(error, StopRun)


def _was_not_found(error: BaseException | None) -> bool:
    """Return whether runpy did not find what to run, and exits with a text of its own."""
    if not isinstance(error, SystemExit) or type(error.__context__).__module__ != "runpy":
        return False
    remove_own_frames(error)
    return error.__traceback__ is not None and error.__traceback__.tb_next is None
