"""What a finding says in words, for people and machines: all of it, and the choice of fixes."""

from __future__ import annotations

from gradscope.model import Applicability, Finding, Fix
from gradscope.units import short_path


def reasons(fix: Fix) -> list[tuple[str, str]]:
    """Return why a fix is proposed and what it means for the training, each under its word."""
    why = [("why", fix.reason)] if fix.reason else []
    return why + [("effect", effect) for effect in fix.effects]


def alternative(fix: Fix) -> str:
    """Return an alternative in a line: what it does, how safe it is, what it means."""
    return f"{with_safety(kind_of(fix), fix)}: {'; '.join(fix.effects) or fix.message}"


def kind_of(fix: Fix) -> str:
    """Return what a fix does, in a word or two."""
    return fix.kind.value.replace("_", " ")


def safety_of(fix: Fix) -> str:
    """Return how safe a fix is, in the word for machines; empty where that is not known."""
    is_known = fix.applicability is not Applicability.UNSPECIFIED
    return fix.applicability.value if is_known else ""


def with_safety(text: str, fix: Fix) -> str:
    """Return a text about a fix, and in brackets how safe that is, if known."""
    return f"{text} ({safety_of(fix)})" if safety_of(fix) else text


def whole_message(finding: Finding) -> str:
    """Return all that a finding says."""
    lines = [f"{finding.message}: {finding.label}" if finding.label else finding.message]
    for related in finding.related:
        where = f" ({short_path(related.site.file)}:{related.site.line})" if related.site else ""
        lines.append(f"note: {related.message}{where}")
    if finding.withdrawn:
        lines.append(f"withdrawn: {finding.withdrawn}")
    if finding.fix is not None:
        lines.append(f"help: {finding.fix.message}")
        lines += [f"{word}: {text}" for word, text in reasons(finding.fix)]
    lines += [f"or: {alternative(other)}" for other in finding.alternatives]
    if finding.suppression is not None:
        lines.append(f"suppressed {finding.suppression.reason}")
    return "\n".join(lines)
