"""Announces the findings of one watch, each cause once: it counts those that are met again, applies
the user's settings, calls the user's function, and writes them to the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from gradscope.collect.notes import Notes
from gradscope.errors import FreedGraphError, StaleSavedTensorError
from gradscope.model import BackwardCall, Certainty, Finding, Findings, Severity
from gradscope.program.undisturbed import unprofiled
from gradscope.record.loggers import Sink
from gradscope.record.writer import RecordingWriter
from gradscope.render.wording import whole_message
from gradscope.rules.settings import Suppressor

_ERRORS: dict[str, type[RuntimeError]] = {"GS101": FreedGraphError, "GS201": StaleSavedTensorError}


class WatchOptions(NamedTuple):
    """The arguments of ``gradscope.watch`` that concern what it does with findings and calls.

    Without a ``suppressor`` every finding counts.
    """

    raise_on: Severity | None = None
    stop_after: int | None = None
    on_finding: Callable[[Finding], None] | None = None
    on_call: Callable[[BackwardCall], None] | None = None
    suppressor: Suppressor | None = None
    sinks: tuple[Sink, ...] = ()


class Announcements:
    """The findings of one watch so far, each cause once, in the order in which they were met."""

    def __init__(self, writer: RecordingWriter, asked: WatchOptions, notes: Notes) -> None:
        self.findings = Findings()
        self._writer = writer
        self._asked = asked
        self._notes = notes

    def report(self, finding: Finding) -> None:
        """Take a finding; call ``on_finding`` the first time that its cause is met, unless the
        finding is suppressed.

        A finding whose cause is known only raises the count of the first one. With a count of 0, it
        brings the figures of the first one up to date.
        """
        unprofiled(self._take)(finding)

    def _take(self, finding: Finding) -> None:
        place = next((i for i, f in enumerate(self.findings) if f.cause == finding.cause), None)
        if place is not None:
            known = self.findings[place]
            newest = replace(known if finding.count else finding, suppression=known.suppression)
            self._set(place, replace(newest, count=known.count + finding.count))
        elif finding.count:  # else it updates a finding from before this watch began
            judged = self._judged(finding)
            self.findings.append(judged)
            self._set(-1, judged)
            for number, earlier in enumerate(self.findings):
                if earlier.is_fulfilled_by(finding):
                    self._set(number, replace(earlier, came_true=True))
            if self._asked.on_finding is not None and judged.suppression is None:
                self._asked.on_finding(judged)

    def _set(self, place: int, finding: Finding) -> None:
        """Write a finding as it is now, without its suppression: whoever reads the recording
        applies their own settings.
        """
        self.findings[place] = finding
        edits = (edit for fix in finding.fixes for edit in fix.edits)
        for named in (finding.site, *(one.site for one in finding.related), *edits):
            if named is not None:
                self._writer.source(named.file)
        self._writer.finding(replace(finding, suppression=None))

    def _judged(self, finding: Finding) -> Finding:
        """Return the finding with the reason why it does not count, if there is one."""
        suppressor = self._asked.suppressor
        if suppressor is None:
            return finding
        what = "judging a finding failed in gradscope, so it counts"
        return self._notes.attempt(what, lambda: suppressor.judged(finding), finding)

    def withdraw(self, reason: str) -> None:
        """Withdraw the predictions that did not come true."""
        for number, finding in enumerate(self.findings):
            if finding.predicts_error and not finding.came_true:
                self._set(number, replace(finding, withdrawn=reason))

    def refusal(self, finding: Finding) -> BaseException | None:
        """Return the exception to raise in the engine's place, if the user asked for that."""
        lowest = self._asked.raise_on
        if lowest is None or finding.certainty is not Certainty.CERTAIN:
            return None
        if finding.severity.rank > lowest.rank or self._judged(finding).suppression:
            return None
        return _ERRORS.get(finding.code, RuntimeError)(f"[{finding.code}] {whole_message(finding)}")
