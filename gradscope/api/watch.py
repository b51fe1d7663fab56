"""Joins hooks, ledger and interception of calls into a watch: ``with gradscope.watch():``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradscope.api.announcements import WatchOptions
from gradscope.api.scope import Scope, Session
from gradscope.collect.notes import Notes
from gradscope.collect.tensor_tracer import FAILED, TensorTracer, followed
from gradscope.collect.walk import MOST_NODES, StackLimit
from gradscope.errors import GradscopeError, Handle
from gradscope.model import BackwardCall, Finding, Header, Outcome, Severity
from gradscope.program.undisturbed import unprofiled
from gradscope.record import __version__
from gradscope.record.file import Store
from gradscope.record.loggers import sinks_of
from gradscope.record.writer import RecordingWriter
from gradscope.rules.settings import Suppressor, percent, settings_at

_session: Session | None = None
_limit = StackLimit()


class watch(contextlib.ContextDecorator):  # noqa: N801 - used as a verb: `with gradscope.watch():`
    """Watch the backward graphs of a block of code, or of every call of a decorated function.

    ``raise_on="error"`` raises :class:`gradscope.FreedGraphError` or
    :class:`gradscope.StaleSavedTensorError` before the engine would raise and before it touches any
    ``.grad``. ``hooks=False`` installs no saved-tensor hooks: graphs are then inspected only when a
    backward call is made. ``save`` writes a recording to a file as it happens. ``on_finding`` is
    called with each :class:`gradscope.model.Finding` the moment it is made, and ``on_call`` with
    each :class:`gradscope.model.BackwardCall` when it has ended. ``log`` gets the watch's metrics
    about once a second and at its end: a ``SummaryWriter``, a run of W&B, the module ``mlflow``, a
    function of a name, a value and a step, or a list of these. ``stop_after`` raises ``StopRun``,
    which no ``except Exception`` stops, after that many backward calls. ``budget``, in percent, is
    the share of the time that the watch may take: once it is spent, calls are not inspected, and an
    engine error in them is explained only after it is raised. The default comes from the variable
    GRADSCOPE_BUDGET or ``[tool.gradscope]``; without either, every call is inspected. A nested
    watch has the budget of the one around it. ``header`` says what was run, if that is not this
    process. ``ways=True`` follows each torch call of the block, which takes time, so that
    ``gradscope.why`` can say where a gradient's path is cut. Watches may be nested.

    Findings that are suppressed by a comment (``# gradscope: ignore[GS303]``), by
    ``[tool.gradscope]`` in pyproject.toml or by its baseline are kept with the reason as their
    ``suppression``; they raise nothing, and ``on_finding`` is not called with them. ``ignore``
    names more codes, ``baseline`` another file; with ``settings=False`` every finding counts.

    Raises GradscopeError if ``save`` cannot be written, ``log`` takes no metrics or the settings
    are wrong; ValueError if ``raise_on`` is not a severity, or if ``settings=False`` comes with
    settings.

    Example::

        with gradscope.watch() as scope:
            train()
        print(scope.findings)
    """

    def __init__(
        self,
        raise_on: str | None = None,
        *,
        hooks: bool = True,
        save: str | os.PathLike[str] | Store | None = None,
        stop_after: int | None = None,
        budget: float | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        on_call: Callable[[BackwardCall], None] | None = None,
        log: Any = None,
        header: Header | None = None,
        ignore: Iterable[str] = (),
        baseline: str | os.PathLike[str] | None = None,
        settings: bool | Suppressor = True,
        ways: bool = False,
    ) -> None:
        if raise_on is not None and raise_on not in [s.value for s in Severity]:
            raise ValueError(
                f"raise_on={raise_on!r}: say one of {', '.join(s.value for s in Severity)}, or None"
            )
        self._hooks, self._ways = hooks, ways
        self._header = header
        self._save = save if save is None or isinstance(save, Store) else Path(save)
        lowest = None if raise_on is None else Severity(raise_on)
        suppressor = _suppressor(settings, ignore, baseline)
        known = None if suppressor is None else suppressor.settings.budget
        self._budget = known if budget is None else percent(budget)
        told = on_finding, on_call, suppressor, sinks_of(log)
        self._options = WatchOptions(lowest, stop_after, *told)
        self._entered: list[tuple[Scope, Session, Handle]] = []

    def __enter__(self) -> Scope:
        global _session
        header = self._header
        if header is None:
            script, *argv = sys.argv or [""]
            header = Header.of_process(script, argv, self._hooks, gradscope=__version__, torch="")
        header = replace(header, torch=str(torch.__version__))
        writer = RecordingWriter(self._save, header)
        if _session is not None and _session.process != os.getpid():
            instead = "start the watch in the child before forking, or not at all"
            raise GradscopeError(f"a watch was inherited through fork(): {instead}")
        if _session is None:
            try:
                _session = Session.begin(self._hooks, self._budget)
            except BaseException:
                writer.close()
                raise
        scope = Scope(writer, self._options, _session)
        _session.enter(scope)
        notes, following = _session.state.notes, Handle()
        if self._ways:
            following = notes.attempt(FAILED, partial(_follow, notes), following)
        self._entered.append((scope, _session, following))
        return scope

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        global _session
        scope, session, following = self._entered.pop()
        session.state.notes.attempt(FAILED, following.close, None)
        failure = scope.explain(error) if scope.outcome is None and error is not None else None
        session.leave(scope)
        if not session.scopes and _session is session:
            _session = None
        if scope.outcome is None:
            text = None if error is None else f"{type(error).__name__}: {error}"
            ended = time.time()
            scope.outcome = Outcome(None, text, finished=True, ended=ended, failure=failure)
        else:
            scope.withdraw()
        try:
            unprofiled(scope.hand_on)()
        finally:
            scope.writer.finish(scope.outcome, scope.with_predictions(session.summary()))
            scope.leave()


def _follow(notes: Notes) -> Handle:
    followed[:] = [TensorTracer(notes, room)]
    return followed[0].follow()


def room(nodes: int = MOST_NODES) -> int:
    """Return how many nodes one look may touch: those that the stack allows to destroy later, if
    need be when it is made larger for so many.
    """
    limit = _session.state.stack_limit if _session is not None else _limit
    return min(limit.room_for(nodes), MOST_NODES)


def _suppressor(
    settings: bool | Suppressor, ignore: Iterable[str], baseline: str | os.PathLike[str] | None
) -> Suppressor | None:
    """Return what judges findings; None where all count."""
    codes = [ignore] if isinstance(ignore, str) else list(ignore)
    if isinstance(settings, Suppressor):
        return settings
    if settings:
        file = None if baseline is None else Path(baseline)
        return Suppressor(settings_at().overridden(codes, baseline=file))
    if codes or baseline is not None:
        raise ValueError("settings=False makes every finding count: give no ignore and no baseline")
    return None


def current() -> Session | None:
    """Return the session of the watches in progress, if there is one."""
    return _session


def abandon() -> None:
    """Take out the hooks of a watch that this process has inherited through ``fork()``."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()
