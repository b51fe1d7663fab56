"""Keeps what one watch has found, each cause once, and what became of what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gradscope.model import Finding, Findings, Outcome, Summary
from gradscope.record.writer import RecordingWriter


class FoundOnce:
    """The findings of a watch; ``judge`` returns one with the reason for which it does not count,
    and ``tell`` is called with each that counts, the first time that its cause is met.
    """

    def __init__(
        self,
        writer: RecordingWriter,
        judge: Callable[[Finding], Finding],
        tell: Callable[[Finding], None] | None,
    ) -> None:
        self.findings = Findings()
        self._writer = writer
        self._judge = judge
        self._tell = tell

    def add(self, finding: Finding) -> None:
        """Take a finding. One of a known cause only raises the count of the first; with a count of
        0 it brings the figures of that one up to date.
        """
        met = (i for i, f in enumerate(self.findings) if f.cause == finding.cause)
        place = next(met, None)
        if place is not None:
            known = self.findings[place]
            newest = replace(known if finding.count else finding, suppression=known.suppression)
            self._set(place, replace(newest, count=known.count + finding.count))
        elif finding.count:  # without one it was said before this watch began
            judged = self._judge(finding)
            self.findings.append(judged)
            self._set(-1, judged)
            for number, earlier in enumerate(self.findings):
                if earlier.is_fulfilled_by(finding):
                    self._set(number, replace(earlier, came_true=True))
            if self._tell is not None and judged.suppression is None:
                self._tell(judged)

    def _set(self, place: int, finding: Finding) -> None:
        """Write a finding as it is now; the recording has it unjudged, as its readers judge it."""
        self.findings[place] = finding
        edits = (edit for fix in finding.fixes for edit in fix.edits)
        for named in (finding.site, *(one.site for one in finding.related), *edits):
            if named is not None:
                self._writer.source(named.file)
        self._writer.finding(replace(finding, suppression=None))

    def withdraw(self, outcome: Outcome) -> None:
        """Withdraw what was predicted and did not come, as the program has run to its end."""
        raised = (outcome.exception or "").partition(":")[0]
        if raised == "KeyboardInterrupt":
            return
        why = f" with {raised}" if raised else ""
        for number, finding in enumerate(self.findings):
            if finding.predicts_error and not finding.came_true:
                reason = f"the program ended{why} before that backward call"
                self._set(number, replace(finding, withdrawn=reason))

    def with_predictions(self, summary: Summary) -> Summary:
        """Return the totals with what became of the predictions."""
        predicted = [finding for finding in self.findings if finding.predicts_error]
        came_true = sum(finding.came_true for finding in predicted)
        return replace(summary, predicted=len(predicted), came_true=came_true)
