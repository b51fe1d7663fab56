"""Joins hooks, ledger and choke point into a watch: ``with gradscope.watch() as scope:``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Unpack

import torch

from gradscope.api.session import Session
from gradscope.errors import FreedGraphError, GradscopeError, StaleSavedTensorError
from gradscope.model import (
    BackwardCall,
    Certainty,
    Edit,
    Finding,
    Findings,
    Header,
    Outcome,
    Recording,
    Severity,
    Summary,
)
from gradscope.model.printed import Printed
from gradscope.record.header import header_of
from gradscope.record.writer import RecordingWriter

if TYPE_CHECKING:
    from gradscope.render.pictures.draw import Drawing
    from gradscope.render.pictures.options import DrawOptions

_ERRORS: dict[str, type[RuntimeError]] = {"GS101": FreedGraphError, "GS201": StaleSavedTensorError}


class StopRun(BaseException):
    """Ends the program after N backward calls; no ``except Exception`` stops it."""


class Scope(Printed):
    """One watch in progress, and what it has seen."""

    def __init__(
        self,
        *,
        raise_on: str | None,
        save: Path | None,
        stop_after: int | None,
        on_finding: Callable[[Finding], None] | None,
        on_call: Callable[[BackwardCall], None] | None,
        header: Header,
    ) -> None:
        self.raise_on = None if raise_on is None else Severity(raise_on)
        self.stop_after = stop_after
        self.writer = RecordingWriter(save, header)
        self.findings = Findings()
        """What was found so far, each cause once, in the order in which it was met."""
        self.outcome: Outcome | None = None
        self._on_finding = on_finding
        self._on_call = on_call
        self._session: Session | None = None
        self._first_call = 0
        self._is_stopped = False

    @property
    def summary(self) -> Summary:
        """The totals so far: nodes built and destroyed, tensors saved, freed and dropped, bytes
        held.
        """
        if self._session is None:
            return self.recording().summary
        return self.with_predictions(self._session.summary())

    def __str__(self) -> str:
        """Return the report, as ``gradscope run`` prints it."""
        return str(self._so_far())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._so_far()._repr_mimebundle_()

    def _so_far(self) -> Recording:
        """Return what was seen, as a run that is at its end."""
        recording = self.recording()
        is_over = self._session is None
        return recording if is_over else replace(recording, outcome=Outcome(finished=True))

    def recording(self) -> Recording:
        """Return all that was seen so far, as plain data."""
        if self._session is not None:
            self.writer.summary(self.with_predictions(self._session.summary()))
        return self.writer.read()

    def draw(
        self,
        file: str | os.PathLike[str] | None = None,
        call: int | None = None,
        **options: Unpack[DrawOptions],
    ) -> Drawing:
        """Draw the graph that backward call ``call`` met, with those of earlier calls that share
        nodes with it.

        Without ``call`` it is the one of the gravest finding, or else the last. The options are
        those of :func:`gradscope.draw`.
        """
        from gradscope.render.pictures.draw import draw_recording
        from gradscope.render.pictures.options import Options

        return draw_recording(self.recording(), file, Options(**options), call=call)

    def finish(self, outcome: Outcome) -> None:
        """Note how the program ended; the watch itself ends with its ``with`` block."""
        self.outcome = outcome

    def look_back(self, main: ModuleType) -> None:
        """Look at what a program whose code has run leaves in the variables of its main module."""
        if self._session is not None and self._session.process == os.getpid():
            self._session.observers.after_program(main)

    def explain(self, error: BaseException) -> None:
        """Announce what is known of an exception that ends the program outside of a backward
        call.
        """
        if self._session is not None:
            self._session.explain(error)

    def report(self, finding: Finding) -> None:
        """Take a finding; call ``on_finding`` the first time that its cause is met.

        A count of 0 brings the figures of a finding up to date.
        """
        met = (i for i, f in enumerate(self.findings) if f.cause == finding.cause)
        known = next(met, None)
        new = known is None
        if known is not None and not finding.count:
            self.findings[known] = replace(finding, count=self.findings[known].count)
        elif new and not finding.count:
            return  # said before this watch began
        self.writer.finding(finding)
        for place in (
            finding.site,
            *(related.site for related in finding.related),
            *_edits(finding),
        ):
            if place is not None:
                self.writer.source(place.file)
        if new:
            self.findings.append(finding)
            for number, earlier in enumerate(self.findings):
                if earlier.is_fulfilled_by(finding):
                    self._settle(number, replace(earlier, came_true=True))
            if self._on_finding is not None:
                self._on_finding(finding)

    def _settle(self, number: int, prediction: Finding) -> None:
        self.findings[number] = prediction
        self.writer.settle(prediction)

    def withdraw(self) -> None:
        """Withdraw what was predicted and did not come, if the program has run to its end."""
        if self.outcome is None or self._is_stopped:
            return
        raised = (self.outcome.exception or "").partition(":")[0]
        if raised == "KeyboardInterrupt":
            return
        why = f" with {raised}" if raised else ""
        for number, finding in enumerate(self.findings):
            if finding.predicts_error and not finding.came_true:
                reason = f"the program ended{why} before that backward call"
                self._settle(number, replace(finding, withdrawn=reason))

    def with_predictions(self, summary: Summary) -> Summary:
        """Return the totals with the number of predictions, and of those that came true."""
        predicted = [finding for finding in self.findings if finding.predicts_error]
        came_true = sum(finding.came_true for finding in predicted)
        return replace(summary, predicted=len(predicted), came_true=came_true)

    def refusal(self, finding: Finding) -> BaseException | None:
        """Return the exception to raise in the engine's place, where the user asked for that."""
        if self.raise_on is None or finding.certainty is not Certainty.CERTAIN:
            return None
        if finding.severity.rank > self.raise_on.rank:
            return None
        return _ERRORS.get(finding.code, RuntimeError)(_worded(finding))

    def called(self, call: BackwardCall) -> None:
        """Take note of a backward call that has ended."""
        if self.writer.header.rank is None and (ranked := _rank()) is not None:
            rank, ranks = ranked
            self.writer.amend(rank=rank, ranks=ranks)
        if self._on_call is not None:
            self._on_call(call)
        if (
            self.stop_after is not None
            and call.exception is None
            and call.number - self._first_call >= self.stop_after
        ):
            self._is_stopped = True
            raise StopRun


def _edits(finding: Finding) -> tuple[Edit, ...]:
    return tuple(edit for fix in finding.fixes for edit in fix.edits)


def _worded(finding: Finding) -> str:
    lines = [
        f"[{finding.code}] {finding.message}: {finding.label}" if finding.label else finding.message
    ]
    for related in finding.related:
        where = f" ({related.site.file}:{related.site.line})" if related.site else ""
        lines.append(f"{related.message}{where}")
    if finding.fix:
        lines.append(f"help: {finding.fix.message}")
    return "\n".join(lines)


_session: Session | None = None


class watch(contextlib.ContextDecorator):  # noqa: N801 - used as a verb: `with gradscope.watch():`
    """Watch the backward graphs of a block of code, or of every call of a decorated function.

    ``raise_on="error"`` raises :class:`gradscope.FreedGraphError` or
    :class:`gradscope.StaleSavedTensorError` before the engine would raise and before it touches any
    ``.grad``. ``hooks=False`` installs no saved-tensor hooks: graphs are then looked at only when a
    backward call is made. ``save`` writes a recording to a file as it happens. ``on_finding`` is
    called with each :class:`gradscope.model.Finding` the moment it is made. Watches may be nested.

    Raises GradscopeError where ``save`` cannot be written, ValueError for another ``raise_on`` than
    a severity.

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
        save: str | os.PathLike[str] | None = None,
        stop_after: int | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        on_call: Callable[[BackwardCall], None] | None = None,
        header: Header | None = None,
    ) -> None:
        if raise_on is not None and raise_on not in [s.value for s in Severity]:
            raise ValueError(
                f"raise_on={raise_on!r}: say one of {', '.join(s.value for s in Severity)}, or None"
            )
        self._raise_on = raise_on
        self._hooks = hooks
        self._save = None if save is None else Path(save)
        self._stop_after = stop_after
        self._on_finding = on_finding
        self._on_call = on_call
        self._header = header
        self._entered: list[Scope] = []

    def __enter__(self) -> Scope:
        global _session
        scope = Scope(
            raise_on=self._raise_on,
            save=self._save,
            stop_after=self._stop_after,
            on_finding=self._on_finding,
            on_call=self._on_call,
            header=self._header or _header_of_process(self._hooks),
        )
        if _session is not None and _session.process != os.getpid():
            raise GradscopeError(
                "a watch was inherited through fork(): "
                "start the watch in the child before forking, or not at all"
            )
        if _session is None:
            try:
                _session = Session.begin(self._hooks)
            except BaseException:
                scope.writer.close()
                raise
        scope._session = _session
        scope.writer.amend(clock=_session.state.clock)
        scope._first_call = _session.state.calls
        _session.scopes.append(scope)
        self._entered.append(scope)
        return scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _session
        scope = self._entered.pop()
        session = scope._session
        assert session is not None
        if session.scopes == [scope]:
            session.observers.at_end()
        session.scopes.remove(scope)
        if not session.scopes:
            session.close()
            if _session is session:
                _session = None
        if scope.outcome is None:
            if error is not None:
                session.scopes.append(scope)
                session.explain(error)
                session.scopes.remove(scope)
            text = None if error is None else f"{type(error).__name__}: {error}"
            scope.outcome = Outcome(None, text, finished=True, ended=time.time())
        else:
            scope.withdraw()
        scope.writer.finish(scope.outcome, scope.with_predictions(session.summary()))
        scope._session = None


def current() -> Session | None:
    """Return the session of the watches in progress, if there is one."""
    return _session


def _rank() -> tuple[int, int] | None:
    """Return which rank this process has, among how many, if it is in a process group."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available():
            return None
        if not distributed.is_initialized():
            return None
        return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:  # a module that is about to be imported, or that stands in for it
        return None


def abandon() -> None:
    """Take out the hooks of a watch that this process has inherited through ``fork()``."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()


def _header_of_process(hooks: bool) -> Header:
    script, *argv = sys.argv or [""]
    return header_of(script, tuple(argv), hooks=hooks, torch=torch.__version__)
