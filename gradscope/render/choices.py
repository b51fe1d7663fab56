"""What a finding's fixes say beside what to do: why, what it means for the training, what else."""

from __future__ import annotations

from gradscope.model import Applicability, Fix


def reasons(fix: Fix) -> list[tuple[str, str]]:
    """Return why a fix is proposed and what it means for the training, each under its word."""
    why = [("why", fix.reason)] if fix.reason else []
    return why + [("effect", effect) for effect in fix.effects]


def alternative(fix: Fix) -> str:
    """Return an alternative in a line: what it does, how safe it is, what it means."""
    safety = safety_of(fix)
    means = "; ".join(fix.effects) or fix.message
    return f"{kind_of(fix)}{f' ({safety})' if safety else ''}: {means}"


def kind_of(fix: Fix) -> str:
    """Return what a fix does, in a word or two."""
    return fix.kind.value.replace("_", " ")


def safety_of(fix: Fix) -> str:
    """Return how safe a fix is, in the word for machines; empty where that is not known."""
    is_known = fix.applicability is not Applicability.UNSPECIFIED
    return fix.applicability.value if is_known else ""
