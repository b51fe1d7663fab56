"""What a user sets once for all commands."""

from __future__ import annotations

from enum import StrEnum

from gradscope.model import Finding, Severity


class FailOn(StrEnum):
    """Lowest severity of a finding that makes the exit status 1, or a test fail."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"
    NEVER = "never"

    def includes(self, finding: Finding) -> bool:
        """Return whether a finding that counts is at or above it."""
        if self is FailOn.NEVER or not finding.counts:
            return False
        return finding.severity.rank <= Severity(self.value).rank
