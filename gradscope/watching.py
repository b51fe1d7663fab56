"""Joins hooks, ledger and choke point into a watch: ``with gradscope.watch() as scope:``."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import torch

from gradscope import hazards, leaks
from gradscope._version import __version__
from gradscope.backward import Backward
from gradscope.errors import FreedGraphError, GradscopeError, StaleSavedTensorError
from gradscope.foresight import Foresight, ForwardOnFreed, InPlace, LineWatch
from gradscope.hooks import (
    DefaultHooks,
    Handles,
    on_optimizer_step,
    replace_register_hooks,
    replace_saved_tensors_of_functions,
    replace_unpack,
    wrap_engine,
)
from gradscope.identity import FunctionTensors, register_hooks, unpack
from gradscope.model import (
    BackwardCall,
    Certainty,
    Edit,
    Finding,
    Findings,
    Graph,
    Header,
    Outcome,
    Recording,
    Sample,
    Severity,
    Site,
    Summary,
)
from gradscope.names import Names
from gradscope.observers import Observers
from gradscope.recording import RecordingWriter, working_directory
from gradscope.saved import Ledger
from gradscope.sites import place_in, user_frame

if TYPE_CHECKING:
    from gradscope.drawing import Drawing, DrawOptions

_SUMMARY_EVERY = 0.2  # seconds
_ERRORS: dict[str, type[RuntimeError]] = {"GS101": FreedGraphError, "GS201": StaleSavedTensorError}


class StopRun(BaseException):
    """Ends the program after the number of backward calls that was asked for; no ``except Exception`` stops it."""


class Scope:
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

    @property
    def summary(self) -> Summary:
        """The totals so far: nodes built and destroyed, tensors saved, freed and dropped, bytes held."""
        return self.recording().summary if self._session is None else self._session.summary()

    def __str__(self) -> str:
        """The report, as ``gradscope run`` prints it."""
        from gradscope.render.printed import report_text

        recording = self.recording()
        return report_text(recording if self._session is None else replace(recording, outcome=Outcome(finished=True)))

    def recording(self) -> Recording:
        """All that was seen so far, as plain data."""
        if self._session is not None:
            self.writer.summary(self._session.summary())
        return self.writer.read()

    def draw(
        self, file: str | os.PathLike[str] | None = None, call: int | None = None, **options: Unpack[DrawOptions]
    ) -> Drawing:
        """Draw the graph that backward call ``call`` met, with those of earlier calls that share nodes with it.

        Without ``call`` it is the one of the gravest finding, or else the last. The options are those of
        :func:`gradscope.draw`.
        """
        from gradscope.drawing import draw_recording

        return draw_recording(self.recording(), file, call=call, **options)

    def finish(self, outcome: Outcome) -> None:
        """Note how the program ended; the watch itself ends with its ``with`` block."""
        self.outcome = outcome

    def look_back(self, main: ModuleType) -> None:
        """Look at what a program whose code has run leaves in the variables of its main module."""
        if self._session is not None and self._session.process == os.getpid():
            self._session.observers.ask("after_program", main)

    def explain(self, error: BaseException) -> None:
        """Say what can be said of an exception that ends the program and came from no backward call."""
        if self._session is not None:
            self._session.explain(error)

    def report(self, finding: Finding) -> None:
        """Take a finding; its ``on_finding`` is told the first time a cause is met."""
        new = all(f.cause != finding.cause for f in self.findings)
        self.writer.finding(finding)
        for place in (finding.site, *(related.site for related in finding.related), *_edits(finding)):
            if place is not None:
                self.writer.source(place.file)
        if new:
            self.findings.append(finding)
            if self._on_finding is not None:
                self._on_finding(finding)

    def refusal(self, finding: Finding) -> BaseException | None:
        """The exception to raise in the engine's place, where the user asked for it."""
        order = list(Severity)
        if self.raise_on is None or finding.certainty is not Certainty.CERTAIN:
            return None
        if order.index(finding.severity) > order.index(self.raise_on):
            return None
        return _ERRORS.get(finding.code, RuntimeError)(_worded(finding))

    def called(self, call: BackwardCall) -> None:
        """Take note of a backward call that has ended."""
        if self._on_call is not None:
            self._on_call(call)
        if self.stop_after is not None and call.exception is None and call.number - self._first_call >= self.stop_after:
            raise StopRun


def _edits(finding: Finding) -> tuple[Edit, ...]:
    return finding.fix.edits if finding.fix is not None else ()


def _worded(finding: Finding) -> str:
    lines = [f"[{finding.code}] {finding.message}: {finding.label}" if finding.label else finding.message]
    for related in finding.related:
        where = f" ({related.site.file}:{related.site.line})" if related.site else ""
        lines.append(f"{related.message}{where}")
    if finding.fix:
        lines.append(f"help: {finding.fix.message}")
    return "\n".join(lines)


class Session:
    """The hooks of the process, shared by all watches in progress: they are put in by the first and taken out by the last."""

    def __init__(self, hooks: bool) -> None:
        self.scopes: list[Scope] = []
        self.process = os.getpid()
        self.names = Names()
        self.ledger = Ledger(self.names)
        self.backward = Backward(self.ledger, self.names, self, self._report, hooked=hooks)
        self.lines = LineWatch(self.backward)
        foresight = [
            self.lines,
            Foresight(self.backward),
            ForwardOnFreed(self.backward, self.lines),
            InPlace(self.backward, self.lines),
        ]
        self.observers = Observers(
            [*foresight, *leaks.observers(self.backward)], self._report, self.ledger.notes.append
        )
        self.backward.observe = self.observers.ask
        self.backward.on_call = self._called
        self.backward.refuse = self._refusal
        self.ledger.stale_message = hazards.StaleMessage(self.backward)
        self._summarized = 0.0
        self._handles = Handles()
        try:
            self._install(hooks)
        except BaseException:
            self._handles.remove()
            raise

    def _install(self, hooks: bool) -> None:
        if hooks:
            functions = FunctionTensors(self.ledger)
            self._handles.add(replace_saved_tensors_of_functions(functions.read))
            self._handles.add(replace_register_hooks(self._register_hooks))
            ledger = self.ledger
            self._handles.add(replace_unpack(lambda original, saved: unpack(original, ledger, saved)))
            default_hooks = DefaultHooks(ledger.pack, ledger.unpack, ledger.compose)
            steady = self.backward.steady
            steady.lift, steady.lower, default_hooks.on_theirs = default_hooks.lift, default_hooks.lower, steady.leave
            ledger.on_other_thread = steady.block
            self._handles.add(default_hooks.install())
            self._handles.add(self.lines.install())
        self._handles.add(wrap_engine(self.backward.run))
        self._handles.add(on_optimizer_step(self._before_step, self._after_step))

    def _register_hooks(self, *args: Any) -> None:
        self.backward.steady.block()  # what the program's own hooks hold cannot be read without running them
        register_hooks(*args)

    def close(self) -> None:
        """Take every hook out."""
        self.ledger.active = False
        self._handles.remove()
        self.backward.restore_stack()

    def _before_step(self, optimizer: Any) -> None:
        if self.ledger.live_tensors or self.backward.steady.on or not self.backward.hooked:
            self.backward.mutations.before_step(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        self.backward.steps += 1
        frame = user_frame(sys._getframe(1))
        place = None if frame is None else place_in(frame)
        if self.ledger.live_tensors or self.backward.steady.on or not self.backward.hooked:
            self.backward.mutations.after_step(optimizer, place)
        self.observers.ask("after_step", optimizer, place, frame)

    # what the choke point writes goes to every watch in progress

    def graph(self, signature: Any, graph: Graph, site: Site | None) -> int | None:
        """Write a graph that a call at ``site`` met; its number in the outermost watch."""
        numbers = [scope.writer.graph(signature, graph, site) for scope in self.scopes]
        return numbers[0]

    def number(self, signature: Any, site: Site | None) -> int | None:
        """The number that the outermost watch gave to the graph of this signature."""
        return self.scopes[0].writer.known(signature, site)

    def call(self, call: BackwardCall, signature: Any) -> None:
        """Write a backward call that has ended."""
        for scope in self.scopes:
            number = scope.writer.known(signature, call.site) or None
            scope.writer.call(call if number == call.graph else replace(call, graph=number))
        now = time.perf_counter()
        if now - self._summarized > _SUMMARY_EVERY:
            self._summarized = now
            summary = self.summary()
            for scope in self.scopes:
                scope.writer.summary(summary)

    def sample(self, sample: Sample) -> None:
        """Write a point of the memory curve."""
        for scope in self.scopes:
            scope.writer.sample(sample)

    def _report(self, finding: Finding) -> None:
        for scope in self.scopes:
            scope.report(finding)

    def _refusal(self, finding: Finding) -> BaseException | None:
        return next((r for r in (scope.refusal(finding) for scope in self.scopes) if r is not None), None)

    def _called(self, call: BackwardCall) -> None:
        for scope in tuple(self.scopes):
            scope.called(call)

    def explain(self, error: BaseException) -> None:
        """Say what can be said of an exception that ended the program and came from no backward call."""
        if not self.backward.has_explained(error):
            finding = hazards.explain_read(error, self.backward.calls)
            if finding is not None:
                self._report(finding)

    def summary(self) -> Summary:
        """The totals so far."""
        ledger, backward = self.ledger, self.backward
        return Summary(
            backward_calls=backward.calls,
            nodes=max(backward.nodes_built, backward.census.alive + backward.census.destroyed),
            nodes_destroyed=backward.census.destroyed,
            saved_tensors=ledger.saved_tensors,
            saved_bytes=ledger.saved_bytes,
            freed_tensors=ledger.freed_tensors,
            freed_bytes=ledger.freed_bytes,
            returned_bytes=ledger.returned_bytes,
            dropped_tensors=ledger.dropped_tensors,
            dropped_bytes=ledger.dropped_bytes,
            live_bytes=ledger.live_bytes,
            peak_saved_bytes=max(ledger.highest_bytes, ledger.peak_bytes),
            notes=tuple(ledger.notes),
        )


_session: Session | None = None


class watch(contextlib.ContextDecorator):  # noqa: N801 - used as a verb: `with gradscope.watch():`
    """Watch the backward graphs of a block of code, or of every call of a decorated function.

    ``raise_on="error"`` raises :class:`gradscope.FreedGraphError` or :class:`gradscope.StaleSavedTensorError` before the engine would
    raise and before it touches any ``.grad``. ``hooks=False`` installs no saved-tensor hooks: graphs are then looked at
    only when a backward call is made. ``save`` writes a recording to a file as it happens. ``on_finding`` is called with each
    :class:`gradscope.model.Finding` the moment it is made. Watches may be nested.

    Raises GradscopeError where ``save`` cannot be written, ValueError for another ``raise_on`` than a severity.

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
            raise ValueError(f"raise_on={raise_on!r}: say one of {', '.join(s.value for s in Severity)}, or None")
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
            header=self._header or _header(self._hooks),
        )
        if _session is not None and _session.process != os.getpid():
            raise GradscopeError(
                "a watch was inherited through fork(): start the watch in the child before forking, or not at all"
            )
        if _session is None:
            try:
                _session = Session(self._hooks)
            except BaseException:
                scope.writer.close()
                raise
        scope._session = _session
        scope._first_call = _session.backward.calls
        _session.scopes.append(scope)
        self._entered.append(scope)
        return scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _session
        scope = self._entered.pop()
        session = scope._session
        assert session is not None
        if session.scopes == [scope]:
            session.observers.ask("at_end")
        session.scopes.remove(scope)
        if not session.scopes:
            session.close()
            _session = None
        if scope.outcome is None:
            if error is not None:
                session.scopes.append(scope)
                session.explain(error)
                session.scopes.remove(scope)
            text = None if error is None else f"{type(error).__name__}: {error}"
            scope.outcome = Outcome(None, text, finished=True, ended=time.time())
        scope.writer.finish(scope.outcome, session.summary())
        scope._session = None


def current() -> Session | None:
    """The session of the watches in progress, if there is one."""
    return _session


def _header(hooks: bool) -> Header:
    return Header(
        gradscope=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        script=sys.argv[0] if sys.argv else "",
        argv=tuple(sys.argv[1:]),
        started=time.time(),
        hooks=hooks,
        cwd=working_directory(),
    )
