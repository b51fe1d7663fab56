"""One watch in progress: what it has seen so far, and what it does about a finding."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Unpack

from gradscope.api.session import Session
from gradscope.code.suppressing import Suppressor
from gradscope.collect.notes import raised_by_program
from gradscope.errors import FreedGraphError, StaleSavedTensorError
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
from gradscope.record.log import Store
from gradscope.record.writer import RecordingWriter
from gradscope.units import counted

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
        save: Path | Store | None,
        stop_after: int | None,
        on_finding: Callable[[Finding], None] | None,
        on_call: Callable[[BackwardCall], None] | None,
        header: Header,
        suppressor: Suppressor | None,
    ) -> None:
        self.raise_on = None if raise_on is None else Severity(raise_on)
        self.stop_after = stop_after
        self.writer = RecordingWriter(save, header)
        self.findings = Findings()
        """What was found so far, each cause once, in the order in which it was met."""
        self.outcome: Outcome | None = None
        self._on_finding = on_finding
        self._on_call = on_call
        self._suppressor = suppressor
        self._session: Session | None = None
        self._first_call = 0
        self._is_stopped = False
        self._notes: tuple[str, ...] = ()

    def join(self, session: Session) -> None:
        """Begin to take what a session of watches sees."""
        self._session = session
        self.writer.follow(lambda: self.with_predictions(session.summary()), session.begun)
        self.writer.amend(clock=session.state.clock)
        self._first_call = session.state.calls

    def leave(self) -> None:
        """Take no more; what was seen stays."""
        self._session = None

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
        recording = self.writer.read()
        return recording if self._suppressor is None else self._suppressor.of_findings(recording)

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
        # Drawing is loaded only when something is drawn.
        from gradscope.render.pictures.draw import draw_recording  # noqa: PLC0415
        from gradscope.render.pictures.options import Options  # noqa: PLC0415

        return draw_recording(self.recording(), file, Options(**options), call=call)

    def finish(self, outcome: Outcome) -> None:
        """Note how the program ended; the watch itself ends with its ``with`` block."""
        self.outcome = outcome

    def note_stop(self) -> None:
        """Note that the program has ended where ``--stop-after`` wanted it to."""
        made = counted(self.stop_after or 0, "backward call")
        self._notes = (f"the program was stopped after {made}, as --stop-after asked",)

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

        A count of 0 brings the figures of a finding up to date. What is suppressed is kept with the
        reason, and nobody is called. The recording has it as it was made: its readers judge again.
        """
        met = (i for i, f in enumerate(self.findings) if f.cause == finding.cause)
        known = next(met, None)
        new = known is None
        if known is not None and not finding.count:
            self.findings[known] = self._judged(replace(finding, count=self.findings[known].count))
        elif new and not finding.count:
            return  # said before this watch began
        for place in (
            finding.site,
            *(related.site for related in finding.related),
            *_edits(finding),
        ):
            if place is not None:
                self.writer.source(place.file)
        self.writer.finding(finding)
        if new:
            judged = self._judged(finding)
            self.findings.append(judged)
            for number, earlier in enumerate(self.findings):
                if earlier.is_fulfilled_by(finding):
                    self._settle(number, replace(earlier, came_true=True))
            if self._on_finding is not None and judged.suppression is None:
                self._on_finding(judged)

    def _judged(self, finding: Finding) -> Finding:
        """Return the finding with the reason for which it does not count, if there is one."""
        try:
            return finding if self._suppressor is None else self._suppressor.judged(finding)
        except Exception as failure:  # of gradscope's, in the program: the finding counts then
            if raised_by_program(failure):
                raise
            return finding

    def _settle(self, number: int, prediction: Finding) -> None:
        self.findings[number] = prediction
        self.writer.settle(replace(prediction, suppression=None))

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
        """Return the totals with what became of the predictions, and why the program stopped."""
        predicted = [finding for finding in self.findings if finding.predicts_error]
        came_true = sum(finding.came_true for finding in predicted)
        notes = (*summary.notes, *self._notes)
        return replace(summary, predicted=len(predicted), came_true=came_true, notes=notes)

    def refusal(self, finding: Finding) -> BaseException | None:
        """Return the exception to raise in the engine's place, where the user asked for that."""
        if self.raise_on is None or finding.certainty is not Certainty.CERTAIN:
            return None
        if finding.severity.rank > self.raise_on.rank or self._judged(finding).suppression:
            return None
        return _ERRORS.get(finding.code, RuntimeError)(_worded(finding))

    @property
    def follows_calls(self) -> bool:
        """Whether each call is asked for as soon as it has ended."""
        return self._on_call is not None or self.stop_after is not None

    def note_rank(self) -> None:
        """Note in the recording which rank the process has, once it has one."""
        if self.writer.header.rank is None and (ranked := _rank()) is not None:
            rank, ranks = ranked
            self.writer.amend(rank=rank, ranks=ranks)

    def called(self, call: BackwardCall) -> None:
        """Take note of a backward call that has ended."""
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
        where = f" ({related.site.full_place})" if related.site else ""
        lines.append(f"{related.message}{where}")
    if finding.fix:
        lines.append(f"help: {finding.fix.message}")
    return "\n".join(lines)


def _rank() -> tuple[int, int] | None:
    """Return which rank this process has, among how many, if it is in a process group."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available():
            return None
        if not distributed.is_initialized():
            return None
        return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception as failure:  # a module that is about to be imported, or a stand-in for it
        if raised_by_program(failure):
            raise
        return None
